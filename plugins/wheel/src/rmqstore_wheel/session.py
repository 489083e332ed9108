"""One open engine directory as a session: both sides over one ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rmqstore.contract import EngineOptions
from rmqstore.engine.kv.directory import NO_ROOM
from rmqstore.engine.session import SharedSession, check_layout
from rmqstore.engine.shared import Shared
from rmqstore.errors import StoreError, StoreFullError, StorePathError
from rmqstore_wheel.broker.for_brokers import ForBrokers
from rmqstore_wheel.broker.revive_log import ReviveLog
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.files.open_marks import OpenMarks
from rmqstore_wheel.log.ledger import Ledger, home_of
from rmqstore_wheel.log.ledger_ports import Sizes
from rmqstore_wheel.queues.queue_log import WheelQueueLog
from rmqstore_wheel.reclaim.upkeep import Upkeep, WheelPops
from rmqstore_wheel.timers.index import TimerIndex
from rmqstore_wheel.timers.store import WheelTimers


def open_session(disk: Disk, directory: Path, options: EngineOptions, sizes: Sizes) -> SharedSession:
    """Open an engine directory as its owner.

    Raises:
        StoreLockedError, FormatVersionError, CorruptStoreError, StoreFullError, StorePathError
    """
    home = home_of(directory)
    root = home.open(lambda path: (path / "commitlog").mkdir())
    with ExitStack() as stack, _typed(directory):
        stack.callback(home.close)
        ledger = Ledger(disk, root, sizes, home, min_epoch=options.min_epoch, pop_buffer=options.pop_buffer)
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

        def begin_for_brokers() -> None:
            revive_log = ReviveLog(ledger, options.broker) if options.engine.get("revive_log", True) else None
            ledger.readers = ForBrokers(ledger, index, marks, revive_log)

        begin_for_brokers()
        ledger.reopened.append(begin_for_brokers)
        check_layout(ledger)
        shared = Shared(ledger, options)
        upkeep = Upkeep(ledger, index)
        timers = WheelTimers(shared, ledger, index, upkeep.go_on)
        pops = WheelPops(shared, lambda _: WheelQueueLog(ledger), upkeep.go_on)
        stack.pop_all()
        return SharedSession(shared, timers, pops)


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
