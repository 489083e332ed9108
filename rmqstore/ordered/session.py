"""One open database as an engine session: both sides over one atomic log."""

from __future__ import annotations

from pathlib import Path

from rmqstore.contract import EngineOptions, EngineSession, PopStore, TimerStore
from rmqstore.errors import CorruptStoreError, FormatVersionError
from rmqstore.ordered.kv import OrderedKV, WriteBatch
from rmqstore.ordered.layout import FORMAT_KEY, FORMAT_VERSION, META
from rmqstore.ordered.pops import OrderedPops
from rmqstore.ordered.readonly import ReadOnlyPops, ReadOnlyTimers
from rmqstore.ordered.runlog import RunQueueLog
from rmqstore.ordered.shared import Shared
from rmqstore.ordered.timers import OrderedTimers


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
        raise CorruptStoreError("the database holds no layout version; open the store without mode='read' once")
    _check_format(stored)


def _check_format(stored: bytes) -> None:
    if stored != bytes((FORMAT_VERSION,)):
        raise FormatVersionError(f"the records have layout version {stored[0]}, this version of rmqstore reads {FORMAT_VERSION}")
