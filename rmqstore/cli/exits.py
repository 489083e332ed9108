"""How a command ends: the exit codes, in one place, and Ctrl-C as a wish to stop at the next good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_DONE: Final = 3
EXIT_INTERRUPTED: Final = 130

MEANINGS: Final = {
    EXIT_OK: "all went well; also the end of `pop --follow` by Ctrl-C",
    EXIT_ERROR: "an error: one paragraph on stderr says what and what to do; also when the reader of the output went away (`| head`)",
    EXIT_USAGE: "the command line was not understood",
    EXIT_NOT_DONE: "it ran, but some item was not done (not cancelled, acked or found), or `verify`, `doctor` or `inspect` found a problem",
    EXIT_INTERRUPTED: "ended by Ctrl-C, after a clean close",
}
"""What each exit code means; docs/cli.md shows this table."""


class Interrupt:
    """While it is in use, the first Ctrl-C only sets ``is_set``, so no call into a store is cut in half.

    A second one is a ``KeyboardInterrupt`` as ever.

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
