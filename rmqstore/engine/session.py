"""One open database as an engine session: both sides over one atomic log.

A session that was opened for reading has the reads of both, and a refusal for everything else (X1, S1).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Never, TypeVar

from rmqstore.contract import EngineOptions, EngineSession, PopStore, Side, TimerStore
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.pops.kv_queue_log import RunQueueLog
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.engine.schema import FORMAT_KEY, FORMAT_VERSION, META
from rmqstore.engine.shared import Shared
from rmqstore.engine.timers.store import OrderedTimers
from rmqstore.errors import CorruptStoreError, FormatVersionError, UnsupportedOperationError

_Side = TypeVar("_Side", bound=Side)


def open_session(kv: OrderedKV, options: EngineOptions, *, read_only: bool = False) -> EngineSession:
    """Open both sides over ``kv``, whose spaces are ``schema.SPACES``; the new open epoch is durable when this returns.

    The session owns ``kv``, which is closed when it cannot be opened. With ``read_only`` nothing is written, not even an epoch, and every
    call that would change something is refused.

    Raises:
        FormatVersionError: the records were written in another version.
        CorruptStoreError: ``read_only``, and the records do not say in which version they were written.
    """
    try:
        check_layout(kv, read_only=read_only)
        shared = Shared(kv, options, read_only=read_only)
        if read_only:
            return ReadSession(shared, ReadOnlyTimers(shared), ReadOnlyPops(shared, RunQueueLog))
        return SharedSession(shared, OrderedTimers(shared), OrderedPops(shared, RunQueueLog))
    except BaseException:
        kv.close()
        raise


class SharedSession(EngineSession):
    """Two sides in one log: a put, its hand-over and the cursor are in one order, so no sync is needed between them."""

    one_log = True

    def __init__(self, shared: Shared, timers: TimerStore, pops: PopStore) -> None:
        self._shared = shared
        self._timers = timers
        self._pops = pops

    def timers(self) -> TimerStore:
        return self._timers

    def pops(self) -> PopStore:
        return self._pops

    def snapshot(self, path: Path) -> None:
        self._shared.snapshot(path)

    def close(self) -> None:
        self._shared.close()


class ReadSession(SharedSession):
    """Both sides as they stood at one moment; :meth:`refresh` moves the moment on."""

    def refresh(self) -> None:
        self._shared.refresh()


def check_layout(kv: OrderedKV, *, read_only: bool = False) -> None:
    """Refuse records of another version than :data:`FORMAT_VERSION`; new ones are given this one.

    Raises:
        FormatVersionError: naming both versions.
        CorruptStoreError: ``read_only``, and no version is there.
    """
    stored = kv.get(META, FORMAT_KEY)
    if stored is not None:
        if stored != bytes((FORMAT_VERSION,)):
            raise FormatVersionError(f"the records have layout version {stored[0]}, this version of rmqstore reads {FORMAT_VERSION}")
    elif read_only:
        raise CorruptStoreError("the database holds no layout version; open the store without read_only=True once")
    else:
        batch = WriteBatch()
        batch.put(META, FORMAT_KEY, bytes((FORMAT_VERSION,)))
        kv.write(batch)


TIMER_CHANGES: Final = ("import_state", "recover", "put", "cancel", "cancel_keys", "seal", "forget", "maintain")
POP_CHANGES: Final = (
    "import_state", "apply", "pop", "revive", "create_topic", "reset_offset", "maintain", "set_group", "delete_topic", "delete_group",
)  # fmt: skip


def refuses(*calls: str) -> Callable[[type[_Side]], type[_Side]]:
    """Leave a side only its reads: each of ``calls`` raises ``UnsupportedOperationError`` (X1, S1)."""

    def refused(call: str) -> Callable[..., Never]:
        def refuse(*_: object, **__: object) -> Never:
            raise UnsupportedOperationError(f"{call} changes the store, which is open for reading here; its owner can do it")

        return refuse

    def left_with_reads(side: type[_Side]) -> type[_Side]:
        for call in calls:
            setattr(side, call, refused(call))
        return side

    return left_with_reads


@refuses(*TIMER_CHANGES)
class ReadOnlyTimers(OrderedTimers):
    """Timers of one view."""


@refuses(*POP_CHANGES)
class ReadOnlyPops(OrderedPops):
    """Queues and leases of one view."""
