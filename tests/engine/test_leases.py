"""Leases as bytes: what they hold comes back, whatever the offsets are."""

from __future__ import annotations

from hypothesis import example, given, strategies as st

from rmqstore.engine.pops.checkpoint import Lease
from rmqstore.engine.schema import LEASE_KEY

DISTANCES = st.one_of(
    st.integers(1, 64).map(lambda count: list(range(count))),
    st.lists(st.integers(0, 2**32 - 1), max_size=40).map(lambda others: [0, *others]),
)


@given(st.integers(0, 2**40), DISTANCES, st.data())
@example(5, [0, 4, 2], None)
@example(5, [0, 0, 2], None)
@example(0, [0, 2, 3], None)
def test_what_a_lease_holds_comes_back(start: int, distances: list[int], data: st.DataObject | None) -> None:
    offsets = [start + distance for distance in distances]
    states = bytearray(len(offsets)) if data is None else bytearray(data.draw(st.binary(min_size=len(offsets), max_size=len(offsets))))
    key = LEASE_KEY.pack(1, 2, 3, start, 1_700_000_000_000)
    lease = Lease(key, 70, 60, 2, 1, offsets, states, first_pop_ms=9, granter=7)
    found = Lease.decode(key, lease.encode())
    assert (found.offsets, bytes(found.states)) == (offsets, bytes(states))
    assert (found.expiry_ms, found.invisible_ms, found.epoch, found.retry_flag, found.first_pop_ms, found.granter) == (70, 60, 2, 1, 9, 7)
    assert Lease.states_of(lease.encode()) == bytes(states)
