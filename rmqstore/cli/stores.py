"""Opening stores for commands: beside a running owner for reading, or as the owner."""

from __future__ import annotations

import difflib
import fcntl
import heapq
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import typer

from rmqstore.cli.shards import Shards
from rmqstore.clock import Clock, SystemClock
from rmqstore.config import keyword_of
from rmqstore.contract import PendingTimer
from rmqstore.errors import (
    ConfigError,
    IllegalArgumentError,
    StoreLockedError,
    StorePathError,
    UnsupportedOperationError,
)
from rmqstore.message import DLQ_PREFIX, RESERVED_PREFIXES
from rmqstore.plugins import BrokenPluginWarning, Plugins, get_plugins
from rmqstore.server import reach
from rmqstore.settings import known_settings
from rmqstore.store import Store, open as open_store
from rmqstore.store.directory import LOCK_NAME, MANIFEST_NAME, read_manifest
from rmqstore.store.opening import checked_path
from rmqstore.store.reader import Reader, ReadStore

_PAGE: Final = 1000

clock_factory: Callable[[], Clock] = SystemClock
"""Makes the clock of every command; tests put another one here."""


def plugins() -> Plugins:
    """Return the plug-ins, for commands that say themselves which of them are broken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BrokenPluginWarning)
        return get_plugins()


def now_ms() -> int:
    """Return the time by the command's clock, ms since the epoch."""
    return clock_factory().now_ms()


def is_store(path: Path) -> bool:
    """Say whether there is a store in the directory ``path``: its manifest exists."""
    return (checked_path(path) / MANIFEST_NAME).is_file()


def is_dataset(path: Path) -> bool:
    """Say whether there is a data set of stores in the directory ``path``, and no store."""
    from rmqstore.spark.dataset import is_dataset as found  # it brings columns along

    return not is_store(path) and found(path)


def manifest(path: Path) -> dict[str, Any] | None:
    """Return what a store says of itself, read without opening it; None when there is no store.

    Raises:
        CorruptStoreError, FormatVersionError: the manifest cannot be read.
    """
    return read_manifest(checked_path(path))


def holder(path: Path) -> str | None:
    """Return what the lock file of a store says of the process that has it open; None when none has."""
    try:
        with open(path / LOCK_NAME, encoding="utf-8") as file:
            try:
                # Shared and for a moment: two who ask do not see each other, and an owner is not kept waiting.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip()
    except OSError:
        pass
    return None


def require(path: Path) -> None:
    """Refuse a directory that is no store, since most commands make none.

    Raises:
        StorePathError: there is none; the message says how to make one.
    """
    if not is_store(path):
        if is_dataset(path):
            raise StorePathError(f"{path} is a data set of stores; name one of its shards, such as {path / 'shard-00000'}")
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise StorePathError(f"{path} is no store, and something else is there; name the directory of a store")
        what = "is empty" if path.exists() else "does not exist"
        raise StorePathError(
            f"there is no store in {path}, the directory {what}; `rmqstore send` and `rmqstore serve` make one with --create"
        )


def shards_at(path: Path) -> list[Path]:
    """Return the shards of the data set in ``path``; none when there is a single store, or nothing.

    Raises:
        StorePathError: a shard is missing.
    """
    if not is_dataset(path):
        return []
    from rmqstore.spark.dataset import Dataset  # as in is_dataset

    dataset = Dataset.open(path)
    for shard in dataset.shards:
        dataset.engines(shard)
    return [dataset.shard_path(shard) for shard in dataset.shards]


def parts(store: Reader) -> list[tuple[dict[str, int], Reader]]:
    """Return the shards of a data set, each with its number as a document has it; of a store, itself and nothing."""
    if isinstance(store, Shards):
        return [({"shard": shard}, opened) for shard, opened in enumerate(store.opened)]
    return [({}, store)]


@contextmanager
def reading(path: Path) -> Iterator[Reader]:
    """Open a store that exists for reading, or all shards of a data set: beside its owner where its engine can, else as owner for a moment.

    Raises:
        StoreLockedError: somebody else has it open, and the engine cannot read beside an owner.
    """
    shards = shards_at(path)
    if not shards:
        require(path)
    with ExitStack() as stack:
        opened = [stack.enter_context(_readable(each)) for each in shards or [path]]
        yield Shards(path, opened) if shards else opened[0]


def _readable(path: Path) -> ReadStore | Store:
    try:
        return ReadStore(checked_path(path), {})
    except UnsupportedOperationError:
        pass  # its engine cannot be opened for reading
    try:
        return open_store(path, clock=clock_factory(), services=False)
    except StoreLockedError as error:
        # What the error says of reading beside the owner does not hold for this engine.
        reason = str(error).partition(";")[0]
        raise StoreLockedError(f"{reason}; its engine cannot be read beside its owner, so wait until it is closed there") from None


@contextmanager
def owning(
    path: Path, *, services: bool = False, create: bool = False, engine: str | None = None, settings: Mapping[str, Any] | None = None
) -> Iterator[Store]:
    """Open a store as its owner, or reach the owner that serves it; one that does not exist is made only with ``create``.

    Args:
        services: run the thread that hands over and revives; without it nothing moves but by ``tick``.
        settings: as :func:`rmqstore.open` takes them.
    """
    if not create:
        require(path)
    if engine is None and not settings:
        store = reach(path, patience=timedelta(0), clock=clock_factory(), services=services)
    else:
        try:
            store = open_store(path, engine=engine, clock=clock_factory(), services=services, **(settings or {}))
        except StoreLockedError as locked:
            raise StoreLockedError(f"{locked}; what --engine and --set say is for who opens it") from None
    with store:
        yield store


@contextmanager
def owning_all(path: Path) -> Iterator[Store]:
    """Own a store as :func:`owning` does, or all shards of a data set, of which then each is asked."""
    shards = shards_at(path)
    with ExitStack() as stack:
        opened = [stack.enter_context(owning(each)) for each in shards or [path]]
        yield Shards(path, opened) if shards else opened[0]


def is_address(store: str) -> bool:
    """Say whether what was given is the address of a server, and not a directory."""
    return "://" in store or store.startswith("unix:") or (":" in store and not Path(store).exists())


def token_for(store: str, file: Path | None) -> str | None:
    """Return the token in a file, for a server's address; None when no file was given."""
    if file is not None and not is_address(store):
        raise typer.BadParameter("a directory is shared without a token; it is for a server's address", param_hint="--token-file")
    return None if file is None else token_in(file)


def token_in(file: Path) -> str:
    """Return the token in a file."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise IllegalArgumentError(f"the token in {file} is no text: {error}; write it in letters and digits") from error


def parsed_settings(given: Sequence[str]) -> dict[str, Any]:
    """Return ``key=value`` texts as the keyword arguments of :func:`rmqstore.open`.

    Raises:
        ConfigError: one has no ``=``, its key is unknown, or its value is none of what the setting takes.
        typer.BadParameter: one names the engine, which has an option of its own.
    """
    known = known_settings(get_plugins().engine_settings())
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: write key=value, for example --set precision_ms=100")
        if key.strip() == "engine":
            raise typer.BadParameter(f"the engine has an option of its own; write --engine {value.strip() or 'NAME'}", param_hint="--set")
        found |= keyword_of(key.strip(), value, f"--set {key.strip()}", known)
    return found


def require_topic(store: Reader, topic: str | None, *, or_timers: bool = False) -> None:
    """Refuse a topic that is asked for and not there, naming those that are.

    Args:
        or_timers: a topic for which a timer is pending will do, although no message made it yet.

    Raises:
        IllegalArgumentError: the store has no such topic.
    """
    names = [info.name for info in store.topics.list(system=True)]
    if topic is None or topic in names:
        return
    users = set(names)
    if or_timers:
        for timer in pending_timers(store):
            if timer.message.topic == topic:
                return
            users.add(timer.message.topic)
    shown = {name for name in users if not name.startswith(RESERVED_PREFIXES)}
    what = f"no topic {topic!r}{' and no timer for one' if or_timers else ''}"
    raise IllegalArgumentError(f"store {store.path} has {what}; {_instead(topic, users, shown)}")


def require_group(store: Reader, group: str | None) -> None:
    """Refuse a group that is asked for and neither popped nor has a dead letter queue, naming those that are known.

    Raises:
        IllegalArgumentError: the store knows no such group.
    """
    dead = (info.name.removeprefix(DLQ_PREFIX) for info in store.topics.list(system=True) if info.name.startswith(DLQ_PREFIX))
    names = {*store.groups.list(), *dead}
    if group is not None and group not in names:
        raise IllegalArgumentError(f"store {store.path} has no group {group!r}; {_instead(group, names, names)}")


def _instead(given: str, names: Collection[str], shown: Collection[str]) -> str:
    """Return a hint: the one of ``names`` that is nearest, or the first of those to be shown."""
    nearest = difflib.get_close_matches(given, sorted(names), n=1)
    if nearest:
        return f"did you mean {nearest[0]}?"
    if not shown:
        return "it has none yet"
    return f"it has {', '.join(sorted(shown)[:10])}" + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")


def pending_timers(store: Reader, from_ms: int = 0, to_ms: int | None = None) -> Iterator[PendingTimer]:
    """Yield the pending timers that are due in ``from_ms <= due < to_ms``, by due time, page after page; None for no end."""
    if isinstance(store, Shards):
        each_in_order = (pending_timers(shard, from_ms, to_ms) for shard in store.opened)
        yield from heapq.merge(*each_in_order, key=lambda timer: timer.deliver_at_ms)
        return
    after = None
    while True:
        page = store.scan(from_ms=from_ms, to_ms=to_ms, after=after, limit=_PAGE)
        yield from page.timers
        if page.next_after is None:
            return
        after = page.next_after
