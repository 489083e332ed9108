"""Stores for cases: which engines there are, and a factory that opens, reopens and closes stores under one ``ManualClock``."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import rmqstore
from rmqstore import ManualClock, Message, PoppedMessage, ReadStore, Store, StoreClosedError, TickReport
from rmqstore.contract import Durability, Flush
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.plugins import get_plugins
from rmqstore.server.remote import RemoteStore
from rmqstore.server.serving import ServerThread
from rmqstore.store.directory import SOCKET_NAME
from rmqstore.store.opening import OwnedEngines
from rmqstore_conformance.data import drawn
from rmqstore_conformance.witness import Witness

START_MS = 1_700_000_000_000
"""Where every clock starts: a whole second, and a whole minute plus 20 s."""

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class Pair(NamedTuple):
    """The engine of each side."""

    timers: str
    pops: str

    def __str__(self) -> str:
        return self.timers if self.timers == self.pops else f"{self.timers}+{self.pops}"

    @property
    def durable(self) -> bool:
        """Whether what is acknowledged outlives a close."""
        return all(survives(name, Flush.SYNC) > Durability.NONE for name in self)


@functools.cache
def survives(engine: str, flush: Flush) -> Durability:
    """Return what every acknowledged call of an engine survives, by its declaration."""
    infos = [entry.info for entry in get_plugins().engines() if entry.name == engine and entry.info is not None]
    return min(infos[0].capabilities.durability[flush].values())


def installed() -> list[str]:
    """Return the engines whose distribution, and what it needs, can be imported."""
    entries = [entry for entry in get_plugins().engines() if entry.info is not None]
    return [entry.name for entry in entries if entry.info is not None and all(find_spec(name) for name in entry.info.requires)]


GIVEN: dict[str, Any] = {}
"""Settings of this run, for every store that is opened."""

WIRED: list[bool] = []
"""Not empty: every store of this run is called over a connection to a server."""

ANNOUNCED: list[str] = []
"""Modules that announce engines of this run; other processes have to import them as well."""


def own_environment() -> dict[str, str]:
    """Return the environment for children: without settings of stores, and the same in all tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("RMQSTORE_", "PYTEST_CURRENT_TEST"))}


class WiredStore(RemoteStore):
    """A store that is called over a connection to a server in this process; closed, it closes both.

    Attributes:
        engine: that of the store, for what cases look at beneath it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        place = Path(tempfile.mkdtemp(prefix="rmqs-")) / SOCKET_NAME
        self._server = ServerThread(store, lambda entrance: entrance.listen_unix(place))
        super().__init__(f"unix:{place}", token=None, tls=None, patience=timedelta(seconds=1))

    @property
    def engine(self) -> OwnedEngines:  # type: ignore[override]
        return self._store.engine

    def __getattr__(self, name: str) -> Any:
        """Give what a case looks at inside a store."""
        return getattr(self._store, name)

    def close(self) -> None:
        super().close()
        self._server.stop()
        self._store.close()


class Stores:
    """Opens stores of one pair of engines under ``root``, all by the same clock, and closes what is left open.

    Stores run without background services, so nothing moves but by ``tick``.
    """

    def __init__(self, pair: Pair, root: Path) -> None:
        self.pair = pair
        self.root = root
        self.clock = ManualClock(START_MS)
        self.witness = Witness()
        self._open: list[Store] = []

    def open(self, name: str = "store", **settings: Any) -> Store:
        settings = {
            "timer_engine": self.pair.timers,
            "pop_engine": self.pair.pops,
            "services": False,
            "clock": self.clock,
            **GIVEN,
            **settings,
        }
        store: Store = rmqstore.open(self.root / name, **settings)
        if WIRED:
            store = WiredStore(store)
        self.witness.watch(name, store.engine.timers, store.engine.pops)
        self._open.append(store)
        return store

    def reopen(self, store: Store, **settings: Any) -> Store:
        """Close a store and open it again."""
        name = Path(store.stats().path).name
        store.close()
        return self.open(name, **settings)

    def tick_after(self, store: Store, passed: int | timedelta) -> TickReport:
        """Let time pass, ms where it is a number, and tick."""
        self.clock.advance(passed)
        return store.tick()

    def tick_at(self, store: Store, now_ms: int) -> TickReport:
        self.clock.set(now_ms)
        return store.tick()

    def verify(self) -> None:
        for store in self._open:
            with suppress(StoreClosedError):
                assert store.verify() == []

    def close(self) -> None:
        for store in self._open:
            store.close()
        self._open.clear()


def copied_as_it_is(source: Path, copy: Path) -> None:
    """Copy the directory of an open store that is not called, as a kill leaves it: again when the engine changed it meanwhile."""
    for attempt in range(20):
        place = copy.with_name(f"{copy.name}-{attempt}")
        try:
            before = _listed(source)
            copy_tree(source, place)
            if _listed(source) == before:
                place.rename(copy)
                return
        except FileNotFoundError:  # it was removed between being listed and being read
            continue
    raise AssertionError("the files of a store that nobody uses do not stand still")


def _listed(directory: Path) -> list[tuple[str, int, int]]:
    states = [(path, path.stat()) for path in directory.rglob("*")]
    return sorted((str(path), state.st_size, state.st_mtime_ns) for path, state in states)


def place() -> Path:
    """Return where stores are made: in memory where the machine has a file system for that, as most cases do not ask what a disk keeps."""
    base = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a directory of our own there
    return base if base.is_dir() else Path(tempfile.gettempdir())


@contextmanager
def directory() -> Iterator[Path]:
    """Give a directory that goes afterwards."""
    path = Path(tempfile.mkdtemp(prefix="rmqs-", dir=place()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def stores_of(pair: Pair) -> Iterator[Stores]:
    """Give a factory in a directory of its own."""
    with directory() as root:
        stores = Stores(pair, root)
        try:
            yield stores
        finally:
            stores.close()


def message(number: int | str, topic: str | None = None, **fields: Any) -> Message:
    """Return a message to which the label ``m`` and ``number`` belongs, in the topic of the case; what is not given is drawn."""
    data, label = drawn(), f"m{number}"
    made = {"topic": topic or data.usual_topic, "message_id": data.id(label), **data.fields(label)}
    return Message(**{**made, **fields})


def plain(number: int | str, topic: str | None = None, **fields: Any) -> Message:
    """Return a message like those of :func:`message` of which nothing is drawn but the id: for cases to which its bytes matter."""
    return message(
        number, topic, **{"body": f"body {number}".encode(), "tag": None, "keys": (), "properties": {}, "born_ms": None, **fields}
    )


def id_of(label: str) -> str:
    """Return the message id that belongs to a label, such as ``m1`` of ``message(1)``."""
    return drawn().id(label)


def key_of(label: str) -> str:
    """Return the key that belongs to a label."""
    return drawn().key(label)


def mark_of(label: str) -> bytes:
    """Return the mark that belongs to a label."""
    return drawn().mark(label)


def attempt_of(label: str) -> str:
    """Return the attempt id that belongs to a label."""
    return drawn().attempt(label)


def message_group_of(label: str) -> str:
    """Return the message group that belongs to a label."""
    return drawn().message_group(label)


def label(given: Any) -> str:
    """Return the label of a message id, or of what has one."""
    return drawn().label(given if isinstance(given, str) else given.message_id)


def ids(messages: Any) -> list[str]:
    """Return the labels of messages in order."""
    return [label(each) for each in messages]


def pop_all(store: Store, topic: str | None = None, group: str | None = None, *, ack: bool = True, **options: Any) -> list[PoppedMessage]:
    """Pop until nothing comes any more, acking as it goes."""
    topic, group = topic or drawn().usual_topic, group or drawn().usual_group
    found: list[PoppedMessage] = []
    while popped := store.pop(topic, group, **{"max_messages": 1024, **options}):
        found += popped
        if ack:
            store.ack(popped)
    return found


def read_ids(store: Store | ReadStore, topic: str | None = None, queue: int = 0) -> list[str]:
    """Return the labels of what is in one queue of any topic, system topics included."""
    topic = topic or drawn().usual_topic
    if store.engine.pops.topic(topic) is None:
        return []
    found: list[str] = []
    offset = 0
    while len(page := store.engine.pops.read(topic, queue, offset, 100_000)):
        found += ids(page.messages)
        offset = page.columns.column("queue_offset")[-1].as_py() + 1
    return found


def state_of(store: Store) -> list[object]:
    """Return everything that a user can see."""
    topics = [(each.name, each.queues, each.max_offsets) for each in store.topics.list(system=True)]
    stored = [list(store.engine.pops.read(name, queue, 0, 1000).messages) for name, queues, _ in topics for queue in range(queues)]
    groups = [(group, store.groups.offsets(group), store.groups.settings(group)) for group in store.groups.list()]
    lags = [store.lag(name, group) for name, _, _ in topics if not name.startswith("%") for group, *_ in groups]
    timers = store.scan().timers
    return [topics, stored, groups, lags, timers, store.pending([0, START_MS, 2**50]), store.engine.pops.timer_cursor(), store.verify()]
