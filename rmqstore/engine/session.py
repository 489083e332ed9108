"""One open database as an engine session: both sides over one atomic log.

A session that was opened for reading has the reads of both, and a refusal for everything else (X1, S1).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Never

from rmqstore.contract import EngineOptions, EngineSession, PopStore, TimerStore
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.pops.kv_queue_log import RunQueueLog
from rmqstore.engine.pops.store import OrderedPops
from rmqstore.engine.schema import FORMAT_KEY, FORMAT_VERSION, META
from rmqstore.engine.shared import Shared
from rmqstore.engine.timers.store import OrderedTimers
from rmqstore.errors import CorruptStoreError, FormatVersionError, UnsupportedOperationError


def open_session(kv: OrderedKV, options: EngineOptions, *, read_only: bool = False) -> EngineSession:
    """Open both sides over ``kv``, whose spaces are ``layout.SPACES``; the new open epoch is durable when this returns.

    With ``read_only`` nothing is written, not even an epoch, and every call that would change something is refused.

    Raises:
        FormatVersionError: the records were written in another version.
        CorruptStoreError: ``read_only``, and the records do not say in which version they were written.
    """
    if read_only:
        check_read_layout(kv)
        shared = Shared(kv, options, read_only=True)
        return ReadSession(shared, ReadOnlyTimers(shared), ReadOnlyPops(shared, RunQueueLog))
    check_layout(kv)
    shared = Shared(kv, options)
    return SharedSession(shared, OrderedTimers(shared), OrderedPops(shared, RunQueueLog))


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


def check_layout(kv: OrderedKV) -> None:
    """Refuse records of another version than :data:`FORMAT_VERSION`; new ones are given this one.

    Raises:
        FormatVersionError: naming both versions.
    """
    stored = kv.get(META, FORMAT_KEY)
    if stored is not None:
        _check_format(stored)
        return
    batch = WriteBatch()
    batch.put(META, FORMAT_KEY, bytes((FORMAT_VERSION,)))
    kv.write(batch)


def check_read_layout(kv: OrderedKV) -> None:
    """As :func:`check_layout`, for a database that nothing is written to.

    Raises:
        FormatVersionError: naming both versions.
        CorruptStoreError: no version is there.
    """
    stored = kv.get(META, FORMAT_KEY)
    if stored is None:
        raise CorruptStoreError("the database holds no layout version; open the store without read_only=True once")
    _check_format(stored)


def _check_format(stored: bytes) -> None:
    if stored != bytes((FORMAT_VERSION,)):
        raise FormatVersionError(f"the records have layout version {stored[0]}, this version of rmqstore reads {FORMAT_VERSION}")


def refuse(call: str) -> Never:
    """Refuse a call that would change the store.

    Raises:
        UnsupportedOperationError: always; it names the call.
    """
    raise UnsupportedOperationError(f"{call} changes the store, which is open for reading here; its owner can do it")


class ReadingTimers(TimerStore):
    """Put before a timer side, it leaves only the reads of that one."""

    def import_state(self, *_: Any, **__: Any) -> Never:
        refuse("import_state")

    def recover(self, *_: Any) -> Never:
        refuse("recover")

    def put(self, *_: Any, **__: Any) -> Never:
        refuse("put")

    def cancel(self, *_: Any, **__: Any) -> Never:
        refuse("cancel")

    def cancel_key(self, *_: Any, **__: Any) -> Never:
        refuse("cancel_key")

    def seal(self, *_: Any, **__: Any) -> Never:
        refuse("seal")

    def forget(self, *_: Any, **__: Any) -> Never:
        refuse("forget")

    def maintain(self, *_: Any, **__: Any) -> Never:
        refuse("maintain")


class ReadOnlyTimers(ReadingTimers, OrderedTimers):
    """Timers of one view."""


class ReadOnlyPops(OrderedPops):
    """Queues and leases of one view."""

    def import_state(self, *_: Any, **__: Any) -> Never:
        refuse("import_state")

    def apply(self, *_: Any, **__: Any) -> Never:
        refuse("apply")

    def pop(self, *_: Any, **__: Any) -> Never:
        refuse("pop")

    def revive(self, *_: Any, **__: Any) -> Never:
        refuse("revive")

    def create_topic(self, *_: Any, **__: Any) -> Never:
        refuse("create_topic")

    def reset_offset(self, *_: Any, **__: Any) -> Never:
        refuse("reset_offset")

    def maintain(self, *_: Any, **__: Any) -> Never:
        refuse("maintain")

    def set_group(self, *_: Any, **__: Any) -> Never:
        refuse("set_group")

    def delete_topic(self, *_: Any, **__: Any) -> Never:
        refuse("delete_topic")

    def delete_group(self, *_: Any, **__: Any) -> Never:
        refuse("delete_group")
