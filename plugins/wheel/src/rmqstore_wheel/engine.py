"""The ``wheel`` engine: a timer wheel over a commit log (RIP-43), on RocketMQ's file formats; a session is both sides over one ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from rmqstore.contract import UpkeepReport
from rmqstore.contract.engine import Engine, EngineOptions, EngineSession
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.engine.session import SharedSession, check_layout
from rmqstore.engine.shared import Shared
from rmqstore.errors import LostCallsError, StoreFullError, system_error
from rmqstore_wheel.broker.files import BrokerFiles, OpenMarks
from rmqstore_wheel.broker.revive_log import ReviveLog
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.log.ledger import Ledger, Sizes, home_of
from rmqstore_wheel.queues.queue_log import WheelQueueLog
from rmqstore_wheel.reader.session import open_for_reading
from rmqstore_wheel.reclaim.reclaim import Reclaim
from rmqstore_wheel.timers.index import TimerIndex
from rmqstore_wheel.timers.store import WheelTimers

_MIB: Final = 1024 * 1024


class WheelEngine(Engine):
    """Opens directories as RocketMQ store directories; the settings ``wheel.*`` are in ``EngineOptions.engine``."""

    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        return open_session(directory, options, sizes_of(options))

    def open_for_reading(self, directory: Path, options: EngineOptions) -> EngineSession:
        return open_for_reading(directory, options, sizes_of(options))


def sizes_of(options: EngineOptions) -> Sizes:
    """Return the sizes that the settings ask for."""
    usual, given = Sizes(), options.engine
    return usual._replace(
        log_file_bytes=int(given.get("log_file_mib", usual.log_file_bytes // _MIB)) * _MIB,
        copy_live_percent=int(given.get("copy_live_percent", usual.copy_live_percent)),
        check_point_bytes=int(given.get("check_point_mib", usual.check_point_bytes // _MIB)) * _MIB,
    )


def open_session(directory: Path, options: EngineOptions, sizes: Sizes) -> SharedSession:
    """Open an engine directory as its owner.

    Raises:
        StoreLockedError, FormatVersionError, CorruptStoreError, StoreFullError, StorePathError
    """
    disk, home = Disk(), home_of(directory)
    root = home.open(lambda path: (path / "commitlog").mkdir())
    with ExitStack() as stack, _typed(directory):
        stack.callback(home.close)
        ledger = Ledger(disk, root, sizes, home, min_epoch=options.min_epoch, pop_buffer=options.pop_buffer)
        stack.callback(ledger.log.close)
        stack.callback(ledger.spare.close)
        ledger.spare.open()
        marks = ledger.in_spare(partial(OpenMarks, disk, root))
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
            ledger.brokers = BrokerFiles(ledger, index, marks, revive_log)

        begin_for_brokers()
        ledger.reopened.append(begin_for_brokers)
        check_layout(ledger)
        shared = ledger.in_spare(partial(Shared, ledger, options))  # which writes the epoch
        upkeep = Reclaim(ledger, index).upkeep
        timers = WheelTimers(shared, ledger, index, upkeep)
        pops = WheelPops(shared, ledger, upkeep)
        stack.pop_all()
        return SharedSession(shared, timers, pops)


@contextmanager
def _typed(directory: Path) -> Iterator[None]:
    """Turn what the operating system says while a directory is opened into the errors of a store."""
    try:
        yield
    except OSError as error:
        raise system_error(error, directory) from error


class WheelPops(OrderedPops):
    """The pop side, whose upkeep is also that of the log."""

    def __init__(self, shared: Shared, ledger: Ledger, upkeep: Callable[[int, UpkeepReport], UpkeepReport]) -> None:
        super().__init__(shared, lambda _: WheelQueueLog(ledger))
        self._ledger = ledger
        self._upkeep = upkeep

    def maintain(self, now_ms: int, budget: int) -> UpkeepReport:
        with self._lock:
            try:
                report = super().maintain(now_ms, budget)
            except LostCallsError:
                raise
            except StoreFullError:  # not at once by way of the spare: each tick comes here
                report = self._ledger.in_spare(partial(super().maintain, now_ms, budget))
            with self._call:
                return self._upkeep(now_ms, report)
