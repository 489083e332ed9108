"""A session of the wheel engine that was opened for reading: the reads of both sides over one ``ReadView``.

A read that meets a cache which its owner changed, or which is damaged, has the view rebuilt from the log, to the same state, and is
done again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from rmqstore.contract import EngineOptions, PendingTimer, TimerCursor, TimerHandle
from rmqstore.engine.kv.snapshot_view import ViewKV
from rmqstore.engine.schema import CURSOR_KEY, META
from rmqstore.engine.session import TIMER_CHANGES, ReadOnlyPops, ReadSession, check_layout, refuses
from rmqstore.engine.shared import Shared
from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.log.ledger import Sizes, home_of
from rmqstore_wheel.queues.queue_log import WheelQueueLog
from rmqstore_wheel.reader.units import OutrunError
from rmqstore_wheel.reader.view import ReadLedger, ReadView
from rmqstore_wheel.timers.store import WheelTimers

_Read = TypeVar("_Read", bound=Callable[..., Any])


class ReadShared(Shared):
    """What both sides share: the view, and how it is rebuilt."""

    def __init__(self, view: ReadView, options: EngineOptions) -> None:
        kv = ViewKV(view)
        check_layout(kv, read_only=True)
        super().__init__(kv, options, read_only=True)
        self.view = view

    def mend(self, seen: ReadLedger) -> bool:
        """Rebuild the view from the log, unless that was done since ``seen`` was the state; False when that was made so too."""
        with self.lock:
            if self.view.ledger is not seen:
                return True
            if self.view.is_rebuilt:
                return False
            self.view.rebuild()
            self.reload()
            return True


def settled(call: _Read) -> _Read:
    """Return a read of :class:`ReadPops` or :class:`ReadTimers` that is done again when a cache was not what it should be."""

    def repeated(self: ReadPops | ReadTimers, *args: Any, **kwargs: Any) -> Any:
        seen = self.view_shared.view.ledger
        try:
            return call(self, *args, **kwargs)
        except (OutrunError, CorruptStoreError):
            if not self.view_shared.mend(seen):
                raise
            return call(self, *args, **kwargs)

    return cast(_Read, repeated)


class ReadPops(ReadOnlyPops):
    """Queues and leases of the view."""

    def __init__(self, shared: ReadShared) -> None:
        self.view_shared = shared
        super().__init__(shared, lambda _: WheelQueueLog(shared.view.ledger))

    read = settled(ReadOnlyPops.read)
    get = settled(ReadOnlyPops.get)
    lag = settled(ReadOnlyPops.lag)
    ready = settled(ReadOnlyPops.ready)
    leases = settled(ReadOnlyPops.leases)
    verify = settled(ReadOnlyPops.verify)
    export_state = settled(ReadOnlyPops.export_state)


@refuses(*TIMER_CHANGES)
class ReadTimers(WheelTimers):
    """Timers of the view."""

    def __init__(self, shared: ReadShared) -> None:
        self.view_shared = shared
        self._load()
        shared.on_reload(self._load)

    def _load(self) -> None:
        view = self.view_shared.view
        seen = view.ledger
        try:
            super().__init__(self.view_shared, seen, seen.index)
        except (OutrunError, CorruptStoreError):
            if view.is_rebuilt:
                raise
            # Nothing of it was read so far.
            view.rebuild()
            super().__init__(self.view_shared, view.ledger, view.ledger.index)

    def get(self, handle: TimerHandle) -> PendingTimer | None:
        found = self._get(handle)
        # What was handed over is no timer any more, and only an owner is told so.
        handed = TimerCursor.from_bytes(self._ledger.get(META, CURSOR_KEY) or b"")
        return None if found is None or handed.covers(found.handle.tick, found.handle.seq) else found

    _get = settled(WheelTimers.get)
    due = settled(WheelTimers.due)
    pending = settled(WheelTimers.pending)
    scan = settled(WheelTimers.scan)
    verify = settled(WheelTimers.verify)
    export_state = settled(WheelTimers.export_state)


def open_for_reading(directory: Path, options: EngineOptions, sizes: Sizes) -> ReadSession:
    """Open one state of an engine directory for reading, whichever process owns it.

    Raises:
        FormatVersionError, CorruptStoreError, StorePathError
    """
    view = ReadView(home_of(directory), options, sizes)
    try:
        shared = ReadShared(view, options)
        return ReadSession(shared, ReadTimers(shared), ReadPops(shared))
    except BaseException:
        view.close()
        raise
