"""Ctrl-C as a wish to stop at the next good moment, so that no call into a store is cut in half."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """While it is in use, the first Ctrl-C only sets ``is_set``; a second one is a ``KeyboardInterrupt`` as ever.

    Outside the main thread, where Python takes no signals, it is never set.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._waits = True
        self._before: Any = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.is_set or not self._waits:
            raise KeyboardInterrupt
        self.is_set = True

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """While inside, which is no place for calls into a store, Ctrl-C is a ``KeyboardInterrupt``; so is one that came before."""
        self._waits = False
        try:
            if self.is_set:
                raise KeyboardInterrupt
            yield
        finally:
            self._waits = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
