"""One open database as an engine session: both sides over one atomic log."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rmqstore.contract import EngineOptions, EngineSession, PopStore, TimerStore
from rmqstore.contract.engine import Setting
from rmqstore.errors import CorruptStoreError, FormatVersionError
from rmqstore.ordered.kv import OrderedKV, WriteBatch
from rmqstore.ordered.layout import FORMAT_KEY, FORMAT_VERSION, META, PACKED_VERSION
from rmqstore.ordered.pops import OrderedPops
from rmqstore.ordered.readonly import ReadOnlyPops, ReadOnlyTimers
from rmqstore.ordered.runlog import RunQueueLog
from rmqstore.ordered.shared import Shared
from rmqstore.ordered.timers import OrderedTimers

VERSIONS: Final = {"row": FORMAT_VERSION, "packed": PACKED_VERSION}
"""The layouts of timers that a store may be made with, and the version of its records (``rowlayout``, ``packedlayout``)."""


def layout_setting(engine: str) -> Setting:
    """Return the setting by which users of a key-ordered engine choose the layout of timers."""
    return Setting(
        key=f"{engine}.layout",
        type=str,
        default="row",
        doc="how timers lie in the database: one entry a tick and call, or all of a call that are due in one minute packed into one",
        choices=tuple(VERSIONS),
        baked=True,
    )


def open_session(kv: OrderedKV, options: EngineOptions, *, read_only: bool = False) -> EngineSession:
    """Open both sides over ``kv``, whose spaces are ``layout.SPACES``; the new open epoch is durable when this returns.

    With ``read_only`` nothing is written, not even an epoch, and every call that would change something is refused. How timers lie is the
    engine's setting ``layout`` (:func:`layout_setting`); ``row`` when it has none.

    Raises:
        FormatVersionError: the records were written in another version, or in the other layout.
        CorruptStoreError: ``read_only``, and the records do not say in which version they were written.
    """
    version = VERSIONS[str(options.engine.get("layout", "row"))]
    if read_only:
        check_read_layout(kv, version)
        shared = Shared(kv, options, read_only=True)
        return ReadSession(shared, ReadOnlyTimers(shared), ReadOnlyPops(shared, RunQueueLog))
    check_layout(kv, version)
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


def check_layout(kv: OrderedKV, version: int = FORMAT_VERSION) -> None:
    """Refuse records of another version than ``version``; new ones are given this one.

    Raises:
        FormatVersionError: naming both versions, or layouts.
    """
    stored = kv.get(META, FORMAT_KEY)
    if stored is not None:
        _check_format(stored, version)
        return
    batch = WriteBatch()
    batch.put(META, FORMAT_KEY, bytes((version,)))
    kv.write(batch)


def check_read_layout(kv: OrderedKV, version: int = FORMAT_VERSION) -> None:
    """As :func:`check_layout`, for a database that nothing is written to.

    Raises:
        FormatVersionError: naming both versions, or layouts.
        CorruptStoreError: no version is there.
    """
    stored = kv.get(META, FORMAT_KEY)
    if stored is None:
        raise CorruptStoreError("the database holds no layout version; open the store without mode='read' once")
    _check_format(stored, version)


def _check_format(stored: bytes, version: int) -> None:
    if stored == bytes((version,)):
        return
    names = {bytes((number,)): name for name, number in VERSIONS.items()}
    if stored in names:
        raise FormatVersionError(
            f"the store was made with layout = {names[stored]!r}, which cannot change; leave the setting out, or migrate into a new store"
        )
    raise FormatVersionError(f"the records have layout version {stored[0]}, this version of rmqstore reads {version}")
