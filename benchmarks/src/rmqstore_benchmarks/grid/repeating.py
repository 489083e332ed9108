"""Something that is done again and again beside the work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def every(seconds: float, call: Callable[[], object], name: str) -> Iterator[None]:
    """Call it every so many seconds, in a thread of this name, until the block ends; then the thread is gone."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(seconds):
            call()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
