"""The workloads are what they say, the same for the same seed, and a backlog is as a store in equilibrium has it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from rmqstore.errors import IllegalArgumentError
from rmqstore.plugins import Offer
from rmqstore_benchmarks.grid import named
from rmqstore_benchmarks.grid.load import KEY_BYTES, NEVER_MS, Calendar, Load, ends_of, ids_in
from rmqstore_benchmarks.grid.named import DAY_MS, START_MS, NamedWorkload, named_workloads, workload_named
from rmqstore_benchmarks.peers.peer import DISTRIBUTIONS

MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("workload", "quantiles_ms", "log_deviation", "cancelled"),
    [
        (workload_named("order-timeout"), {0.5: 30 * MINUTE_MS}, 0.5, 0.85),
        (workload_named("retry-backoff"), {0.25: 10_000, 0.6: 30_000, 0.8: 60_000}, None, 0),
        (workload_named("reminder"), {share / 10: share * 3 * DAY_MS for share in range(1, 10)}, None, 0.1),
        (workload_named("within-the-hour"), {0.25: 15 * MINUTE_MS, 0.75: 45 * MINUTE_MS}, None, 0),
        (workload_named("eight-oclock"), {0: 480 * MINUTE_MS, 1: 480 * MINUTE_MS}, 0, 0),
        (DISTRIBUTIONS["constant"], {0: 30 * MINUTE_MS, 1: 30 * MINUTE_MS}, 0, 0),
        (DISTRIBUTIONS["lognormal"], {0.5: 30 * MINUTE_MS}, 1.0, 0),
        (DISTRIBUTIONS["uniform"], {0.25: 15 * MINUTE_MS, 0.75: 45 * MINUTE_MS}, None, 0),
    ],
    ids=lambda each: each.name if isinstance(each, NamedWorkload) else "",
)
def test_a_workload_has_its_shape(
    workload: NamedWorkload, quantiles_ms: dict[float, int], log_deviation: float | None, cancelled: float
) -> None:
    batch = Load(workload, 64, 1).fresh(START_MS, 20_000)
    delays, are_cancelled = batch.due_ms - START_MS, batch.cancel_ms != NEVER_MS
    assert delays.min() >= 1
    assert np.quantile(delays, list(quantiles_ms)) == pytest.approx(list(quantiles_ms.values()), rel=0.05)
    assert log_deviation is None or np.log(delays).std() == pytest.approx(log_deviation, rel=0.03)
    assert are_cancelled.mean() == pytest.approx(cancelled, abs=0.01)
    assert (batch.cancel_ms > START_MS).all()
    assert (batch.cancel_ms[are_cancelled] <= batch.due_ms[are_cancelled]).all()


def test_the_backlog_of_the_burst_is_due_in_one_tick() -> None:
    load = Load(workload_named("eight-oclock"), 64, 1)
    assert {due for _ in range(2) for due in load.found(START_MS, 500).due_ms.tolist()} == {START_MS + 480 * MINUTE_MS}


def test_the_same_seed_makes_the_same_batches_and_another_one_others() -> None:
    one, same, other = (Load(workload_named("order-timeout"), 256, seed) for seed in (3, 3, 4))
    for _ in range(3):
        left, right, wrong = (load.fresh(START_MS) for load in (one, same, other))
        assert left.columns.equals(right.columns)
        assert (left.cancel_ms == right.cancel_ms).all()
        assert not left.columns.equals(wrong.columns)


def test_bodies_carry_their_numbers_and_keys_their_length() -> None:
    load = Load(workload_named("order-timeout"), 100, 1)
    first, second = load.fresh(START_MS, 10), load.found(START_MS, 7)
    assert ids_in(first.columns.column("body")).tolist() == list(range(10))
    assert ids_in(second.columns.column("body")).tolist() == list(range(10, 17))
    assert ids_in(first.columns.column("body").slice(3, 2)).tolist() == [3, 4]
    assert ids_in(pa.array([b"", bytes(7), bytes(8)])).tolist() == [-1, -1, 0]
    assert {len(keys[0]) for keys in first.columns.column("keys").to_pylist()} == {KEY_BYTES}
    assert {len(body) for body in first.columns.column("body").to_pylist()} == {100}


@pytest.mark.parametrize("body_bytes", [8, 12, 16, 100])
def test_a_body_that_is_not_what_was_sent_is_found_by_its_ends_and_whole(body_bytes: int) -> None:
    load = Load(workload_named("order-timeout"), body_bytes, 1)
    load.made = 7
    column = pa.concat_arrays([load.fresh(START_MS, 10).columns.column("body"), load.found(START_MS, 20).columns.column("body")])
    ids = ids_in(column)
    order = np.random.default_rng(1).permutation(30)
    ids, column = ids[order], column.take(pa.array(order))
    assert not load.frayed(ids, *ends_of(column)).any()
    assert not load.damaged(ids, column).any()
    assert not load.damaged(ids[5:9], column.slice(5, 4)).any()
    bodies = column.to_pylist()
    bodies[3] += b"x"
    tail = bytes([bodies[4][-1] ^ 1])
    if body_bytes > 8:
        bodies[4] = bodies[4][:-1] + tail
        bodies[5] = bodies[5][:8]
        bodies[6] = bodies[6][:8] + bytes([bodies[6][8] ^ 1]) + bodies[6][9:]
    wrong = pa.array(bodies, pa.binary())
    whole = [3, 4, 5, 6] if body_bytes > 8 else [3]
    assert np.flatnonzero(load.damaged(ids, wrong)).tolist() == whole
    ends = {8: [3], 12: [3, 5], 16: [3, 4, 5, 6], 100: [3, 4, 5]}[body_bytes]
    assert np.flatnonzero(load.frayed(ids, *ends_of(wrong))).tolist() == ends
    assert not load.damaged(ids + 100, wrong).any(), "others made those"


def test_a_large_body_makes_a_small_batch() -> None:
    assert Load(workload_named("order-timeout"), 65_536, 1).batch_rows == 64


@pytest.mark.parametrize("name", ["order-timeout", "reminder", "pop-heavy"])
def test_a_backlog_in_equilibrium_loses_what_littles_law_says(name: str) -> None:
    """Of N timers N/D leave within a short time, D being the mean wait, less those that came within it as well and so are not of the N."""
    load = Load(workload_named(name), 64, 1)
    found = load.found(START_MS, 50_000)
    leaves_ms = np.minimum(found.due_ms, found.cancel_ms) - START_MS
    assert leaves_ms.min() > 0
    span_ms = load.mean_wait_ms / 20
    fresh = load.fresh(START_MS, 50_000)
    waits_ms = np.minimum(fresh.due_ms, fresh.cancel_ms) - START_MS
    expected = 50_000 * np.minimum(waits_ms, span_ms).mean() / load.mean_wait_ms
    assert 1000 < expected <= 50_000 / 20
    assert (leaves_ms <= span_ms).sum() == pytest.approx(expected, rel=0.1)


def test_the_calendar_gives_each_id_once_when_its_time_has_come() -> None:
    calendar = Calendar(10)
    calendar.add(np.arange(5), np.array([5, 25, NEVER_MS, 14, 999]))
    assert calendar.take(9).tolist() == []
    assert calendar.take(20).tolist() == [0, 3]
    calendar.add(np.array([9]), np.array([3]))
    assert sorted(calendar.take(30).tolist()) == [1, 9]
    assert calendar.take(10**9).tolist() == [4]
    assert calendar.take(10**9).tolist() == []


# ---------------------------------------------------------------- by name, and from plug-ins


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(IllegalArgumentError, match=r"'order-timeouts'; did you mean 'order-timeout'"):
        workload_named("order-timeouts")


@pytest.mark.parametrize("field", [{"cancelled": 1.0}, {"acked": 0.0}, {"phases": ("mixed",)}, {"name": "Nö"}])
def test_a_workload_out_of_range_is_refused(field: dict[str, object]) -> None:
    good: dict[str, object] = {"name": "x", "about": "", "delays_ms": lambda rng, count: np.ones(count, np.int64)}
    with pytest.raises(IllegalArgumentError, match=next(iter(field))):
        NamedWorkload(**(good | field))  # type: ignore[arg-type]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> object:
    """Give a function that makes plug-ins offer something."""

    def offering(item: object) -> None:
        plugins = SimpleNamespace(workloads=lambda: [Offer(item, "acme-bench", "1.0")])
        monkeypatch.setattr(named, "get_plugins", lambda: plugins)

    return offering


def test_plug_ins_offer_workloads_by_import_name(offer, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    own = NamedWorkload(name="acme", about="theirs", delays_ms=lambda rng, count: np.ones(count, np.int64))
    monkeypatch.setitem(sys.modules, "acme_bench", SimpleNamespace(OWN=own, taken=workload_named("order-timeout")))
    offer("acme_bench:OWN")
    assert workload_named("acme") is own
    offer("acme_bench:taken")
    with pytest.raises(IllegalArgumentError, match=r"acme-bench 1\.0 offers a workload 'order-timeout', a name that is taken"):
        named_workloads()
    for wrong in (own, "acme_bench", "acme_bench:missing", "no_such_module:OWN", "sys:path"):
        offer(wrong)
        with pytest.raises(IllegalArgumentError, match="acme-bench"):
            named_workloads()
