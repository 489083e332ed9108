"""One open engine directory as a session: both sides over one ledger."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rmqstore.contract import EngineOptions, EngineSession, PopStore, TimerStore
from rmqstore.errors import StoreError, StoreFullError, StorePathError
from rmqstore.ordered.home import NO_ROOM, EngineHome
from rmqstore.ordered.pops import OrderedPops
from rmqstore.ordered.session import check_layout
from rmqstore.ordered.shared import Shared
from rmqstore_wheel.disk import Disk
from rmqstore_wheel.for_brokers import OF_OPEN_STORE, ForBrokers, OpenMarks
from rmqstore_wheel.ledger import Ledger, Sizes
from rmqstore_wheel.queue_log import WheelQueueLog
from rmqstore_wheel.revive_log import ReviveLog
from rmqstore_wheel.timer_index import TimerIndex
from rmqstore_wheel.timers import WheelTimers

ENGINE: Final = "wheel"
FORMAT_VERSION: Final = 1


class WheelShared(Shared):
    """What both sides share; a copy is made by a check point and the files that it speaks of."""

    def __init__(self, ledger: Ledger, options: EngineOptions, home: EngineHome) -> None:
        super().__init__(ledger, options)
        self._ledger = ledger
        self._home = home

    def snapshot(self, path: Path) -> None:
        with self.lock, self._watched():
            self.fresh()
            self._home.snapshot(path, self._copy)

    def _copy(self, copy: Path) -> None:
        self._ledger.make_check_point()
        copy_tree(self._ledger.root, copy)


class WheelSession(EngineSession):
    """Timers and pops in one log, so no sync is needed between them."""

    one_log = True

    def __init__(self, disk: Disk, directory: Path, options: EngineOptions, sizes: Sizes) -> None:
        home = EngineHome(directory, ENGINE, FORMAT_VERSION)
        root = home.open(lambda path: (path / "commitlog").mkdir())
        with ExitStack() as stack, _typed(directory):
            stack.callback(home.close)
            ledger = Ledger(disk, root, sizes, min_epoch=options.min_epoch, on_close=home.close)
            stack.callback(ledger.log.close)
            with ledger.translated():
                marks = OpenMarks(disk, root)
            stack.callback(marks.close)
            stack.callback(lambda: ledger.queues.close())
            index = TimerIndex(ledger, options.precision_ms)
            stack.callback(index.close)
            ledger.open(index)
            stack.pop_all()
        with ExitStack() as stack, _typed(directory):
            stack.callback(ledger.close)
            stack.callback(marks.close)
            revive_log = ReviveLog(ledger, options.broker) if options.engine.get("revive_log", True) else None
            ledger.readers = ForBrokers(ledger, index, marks, revive_log)
            check_layout(ledger)
            self._shared = WheelShared(ledger, options, home)
            self._timers = WheelTimers(self._shared, ledger, index)
            self._pops = OrderedPops(self._shared, lambda shared: WheelQueueLog(ledger))
            stack.pop_all()

    def timers(self) -> TimerStore:
        return self._timers

    def pops(self) -> PopStore:
        return self._pops

    def snapshot(self, path: Path) -> None:
        self._shared.snapshot(path)

    def close(self) -> None:
        self._shared.close()


@contextmanager
def _typed(directory: Path) -> Iterator[None]:
    """Turn what the operating system says while a directory is opened into the errors of a store."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        kind = StoreFullError if error.errno in NO_ROOM else StorePathError
        raise kind(f"{directory}: {error.strerror or error}") from error


def copy_tree(source: Path, copy: Path) -> None:
    """Copy the directory of a store; what is a hole in a file stays one."""
    root = str(source)
    shutil.copytree(source, copy, ignore=lambda path, _: OF_OPEN_STORE if path == root else (), copy_function=_copy_file)


def _copy_file(source: str, copy: str) -> str:
    with open(source, "rb") as reader, open(copy, "wb") as writer:
        length = os.fstat(reader.fileno()).st_size
        offset = 0
        while offset < length:
            try:
                offset = os.lseek(reader.fileno(), offset, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(reader.fileno(), offset, os.SEEK_HOLE)
            reader.seek(offset)
            writer.seek(offset)
            while offset < end:
                piece = reader.read(min(end - offset, 1024 * 1024))
                writer.write(piece)
                offset += len(piece)
        writer.truncate(length)
    return copy
