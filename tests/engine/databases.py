"""What tests of ``OrderedKV`` share: a base in memory that can be held up and broken, a model, and changes by chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis import strategies as st

from rmqstore.engine import schema
from rmqstore.engine.kv.base import DeleteFew, DeleteMany, DeleteRange, Entry, OrderedKV, PutMany, WriteBatch, take_page
from rmqstore.engine.kv.buffered import Base
from rmqstore.engine.kv.overlay import SpaceChange
from rmqstore.errors import StoreFullError

SPACES = ("meta", "timers", "queues")
Model = list[dict[bytes, bytes]]

spaces = st.sampled_from((0, 0, 0, 1, 2))
"""Mostly one of them, so that changes meet each other."""
keys = st.binary(min_size=1, max_size=3).map(lambda raw: bytes(byte % 5 + 97 for byte in raw))
values = st.one_of(st.binary(max_size=5), st.binary(min_size=100, max_size=120))
changes = st.one_of(
    st.builds(PutMany, spaces, st.lists(st.tuples(keys, values), min_size=1, max_size=20)),
    st.builds(DeleteMany, spaces, st.lists(keys, min_size=1, max_size=8)),
    st.builds(lambda space, a, b: DeleteRange(space, min(a, b), max(a, b) + b"\x00"), spaces, keys, keys),
    # A queue: the low end goes first.
    st.builds(lambda space, low: DeleteRange(space, b"\x00", low), spaces, keys),
    # With the keys that are there by then.
    st.builds(lambda space, a, b: DeleteFew(space, min(a, b), max(a, b) + b"\x00", ()), spaces, keys, keys),
)


def apply(model: dict[bytes, bytes], change: PutMany | DeleteMany | DeleteRange) -> None:
    """Make a change of one space in its dict."""
    if isinstance(change, PutMany):
        model.update(change.items)
    elif isinstance(change, DeleteMany):
        for key in change.keys:
            model.pop(key, None)
    else:
        for key in [key for key in model if change.start <= key < change.stop]:
            del model[key]


def with_keys(model: dict[bytes, bytes], change: PutMany | DeleteMany | DeleteRange) -> PutMany | DeleteMany | DeleteRange:
    """Tell a range that is removed key by key which ones it holds."""
    if not isinstance(change, DeleteFew):
        return change
    return DeleteFew(change.space, change.start, change.stop, [key for key in model if change.start <= key < change.stop])


def page_of(model: dict[bytes, bytes], start: bytes, stop: bytes | None, limit: int, reverse: bool) -> list[Entry]:
    """Return what a scan should, without a bound in bytes."""
    inside = (entry for entry in model.items() if entry[0] >= start and (stop is None or entry[0] < stop))
    return sorted(inside, reverse=reverse)[:limit]


def put(kv: OrderedKV, key: bytes, value: bytes, space: int = 0) -> int:
    """Write one entry."""
    batch = WriteBatch()
    batch.put(space, key, value)
    return kv.write(batch)


def raiser(error: BaseException) -> Callable[[], None]:
    """Return what raises an error."""

    def fail() -> None:
        raise error

    return fail


class FakeBase(Base):
    """Keeps dicts. ``before_commit`` and ``after_commit`` may wait or raise; ``before_scan`` comes before each page."""

    name = "fake"

    def __init__(self) -> None:
        self.state: Model = [{} for _ in schema.SPACES]
        self.commits: list[list[SpaceChange]] = []
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None
        self.before_scan: Callable[[], None] = lambda: None
        self.reopened = 0
        self.closed = 0

    def fill(self) -> None:
        """Leave no room for a commit."""
        self.before_commit = raiser(StoreFullError("no room"))

    def free(self) -> None:
        """Make room."""
        self.before_commit = lambda: None

    def get(self, space: int, key: bytes) -> bytes | None:
        return self.state[space].get(key)

    def scan(self, space: int, start: bytes, stop: bytes | None, limit: int, *, reverse: bool, page_bytes: int) -> list[Entry]:
        self.before_scan()
        return take_page(iter(page_of(self.state[space], start, stop, limit, reverse)), limit, page_bytes)

    def commit(self, changes: Sequence[SpaceChange]) -> None:
        self.before_commit()
        state = [dict(space) for space in self.state]
        for change in changes:
            entries = state[change.space]
            for start, stop in change.ranges:
                apply(entries, DeleteRange(change.space, start, stop))
            apply(entries, DeleteMany(change.space, change.deletes))
            assert change.puts == sorted(change.puts)
            entries.update(change.puts)
        self.state = state
        self.commits.append(list(changes))
        self.after_commit()

    def reopen(self) -> None:
        self.reopened += 1

    def snapshot(self, path: Path) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1
