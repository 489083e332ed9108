"""Floors: what a table has before a time is found, and what was worked off is not read again."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, strategies as st

from rmqstore.contract import EngineOptions
from rmqstore.engine.floors import Floors
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.schema import LEASES, META, TRACES
from rmqstore.engine.shared import Shared
from rmqstore_memory.kv import MemoryKV

TABLES = [(META, b"lp"), (META, b"lt"), (TRACES, b"h"), (LEASES, b"e")]
tables = st.sampled_from(TABLES)
times = st.integers(0, 9).map(lambda number: b"%d" % number)
steps = st.one_of(
    st.tuples(st.just("put"), tables, times),
    st.tuples(st.just("refused"), tables, times),
    st.tuples(st.just("delete"), tables, times),
    st.tuples(st.just("before"), tables, times),
    st.tuples(st.just("save"), tables, times),
    st.tuples(st.just("go back"), tables, times),
)


@given(st.lists(steps, max_size=40))
def test_floors_hide_nothing(script: list[tuple[str, tuple[int, bytes], bytes]]) -> None:
    kv = MemoryKV("memory", 5)
    floors = Floors(kv)
    saved = copy.deepcopy(kv._maps)
    for what, (space, table), time in script:
        batch = WriteBatch()
        match what:
            case "put" | "refused":
                batch.put(space, table + time, b"")
                floors.follow(batch)
                if what == "put":
                    kv.write(batch)
            case "delete":
                batch.delete_range(space, table, table + time)
                floors.follow(batch)
                kv.write(batch)
            case "save":
                saved = copy.deepcopy(kv._maps)
            case "go back":
                kv._maps = copy.deepcopy(saved)
                floors.forget()
            case _:
                assert floors.before(space, table, table + time, 3) == kv.scan(space, table, table + time, 3)
        for space_of, each in TABLES:
            assert kv.scan(space_of, each, floors.of(space_of, each), 1) == []


class SeeingKV(MemoryKV):
    """Notes where scans begin."""

    def __init__(self) -> None:
        super().__init__("memory", 5)
        self.seen: list[bytes] = []

    def scan(self, space: int, start: bytes, *args: Any, **kwargs: Any) -> list[tuple[bytes, bytes]]:
        self.seen.append(start)
        return super().scan(space, start, *args, **kwargs)


def test_a_table_that_is_worked_off_is_read_from_where_it_begins() -> None:
    """Each scan would walk the tombstones of all that went before."""
    kv = SeeingKV()
    floors = Floors(kv)

    def write(**keys: list[bytes]) -> None:
        batch = WriteBatch()
        batch.put_many(LEASES, [(key, b"") for key in keys.get("put", [])])
        batch.delete_many(LEASES, keys.get("delete", []))
        floors.follow(batch)
        kv.write(batch)

    def work_off(count: int) -> list[bytes]:
        found = [key for key, _ in floors.before(LEASES, b"e", b"e80", count)]
        write(delete=found)
        return found

    write(put=[b"e%d" % number for number in range(10, 60)] + [b"e90"])
    for number in range(10, 60, 5):
        assert work_off(5) == [b"e%d" % each for each in range(number, number + 5)]
    assert kv.seen == [b"e", *[b"e%d" % number for number in range(10, 55, 5)]]
    assert work_off(5) == []
    read = len(kv.seen)
    assert work_off(5) == []
    assert len(kv.seen) == read, "it is known that there is nothing old"
    write(put=[b"e30"])
    assert work_off(5) == [b"e30"]


def test_a_state_that_is_read_again_has_no_floors() -> None:
    """After a full disk what was removed may be back."""
    kv = MemoryKV("memory", 5)
    shared = Shared(kv, EngineOptions(store_tag=7, broker="b"))
    assert shared.floors.before(LEASES, b"e", b"e5", 1) == []
    back = WriteBatch()
    back.put(LEASES, b"e3", b"")
    kv.write(back)
    shared.reload()
    assert shared.floors.before(LEASES, b"e", b"e5", 1) == [(b"e3", b"")]
    late = WriteBatch()
    late.put(LEASES, b"e1", b"")
    shared.write(late)
    assert shared.floors.before(LEASES, b"e", b"e5", 1) == [(b"e1", b"")]
