"""The figures behind a report: medians and spreads, intervals, percentiles, the Pareto front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from benchmarks.tests.grid_results import Grid
from rmqstore_benchmarks.grid.tables import PHASES, Results, bounds_of, buckets_of, kind_of, read
from rmqstore_benchmarks.report import text as words
from rmqstore_benchmarks.report.cells import slices
from rmqstore_benchmarks.report.drawing import looks_of
from rmqstore_benchmarks.report.figures import front
from rmqstore_benchmarks.statistics import (
    DRAIN,
    LARGEST,
    SPREAD,
    figures,
    in_random_order,
    interval,
    known,
    latencies,
    overloaded,
    percentiles,
    run_figures,
)

_POINTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)


def results(grid: Grid, directory: Path) -> Results:
    return read(grid.write(directory))


def latencies_of(found: Results) -> pd.DataFrame:
    return latencies(found, figures(found))


def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one != other and one[0] >= other[0] and one[1] >= other[1]


@given(_POINTS)
def test_the_front_is_what_no_point_beats(points: list[tuple[int, int]]) -> None:
    assert front(pd.DataFrame(points)).tolist() == [not any(beats(other, point) for other in points) for point in points]


# ---------------------------------------------------------------- runs and repeats

SHARD = {"messages": 100, "user_bytes": 1000, "wchar_bytes": 3000}


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        # Rates of shards add up, and bytes of the device do not.
        (
            [
                SHARD | {"wall_s": 1.0, "device_write_bytes": 8000, "first_queue_dry": 0.9},
                SHARD | {"wall_s": 2.0, "device_write_bytes": 8200, "first_queue_dry": 0.8},
            ],
            {
                "wall_s": 2.0,
                "us_per_message": 1e4,
                "rate": 150.0,
                "user_bytes_per_s": 1500.0,
                "wchar_per_user_byte": 3.0,
                "device_write_per_user_byte": 4.1,
                "first_queue_dry": 0.8,
            },
        ),
        # What one shard does not tell is not told, and without messages there is no rate.
        ([{"messages": 1, "wall_s": 1.0, "cpu_s": 5}, {"messages": 1, "wall_s": 1.0}], {"wall_s": 1.0, "us_per_message": 5e5, "rate": 2.0}),
        ([{"messages": 0, "wall_s": 1.0}], {"wall_s": 1.0}),
    ],
)
def test_figures_of_a_run_are_those_of_its_shards(shards: list[dict[str, Any]], expected: dict[str, float]) -> None:
    table = pd.DataFrame(shards, columns=PHASES.names, dtype=float).assign(run_id="r", phase="schedule")
    assert run_figures(table).iloc[0].dropna().to_dict() == expected


def test_a_drain_takes_as_long_as_both_its_phases(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("wheel", ("hand_over", "pop_ack"))
    rates = known(figures(results(grid, tmp_path)), "rate", "hand_over", "pop_ack", DRAIN).set_index("phase")["median"]
    assert 1 / rates[DRAIN] == pytest.approx(1 / rates["hand_over"] + 1 / rates["pop_ack"])


def test_each_round_has_an_order_of_its_own_which_a_seed_repeats() -> None:
    orders = [in_random_order(range(9), round_, seed) for seed in (1, 2) for round_ in range(3)]
    assert len({tuple(order) for order in orders}) == len(orders)
    assert all(sorted(order) == list(range(9)) for order in orders)
    assert in_random_order(range(9), 0, 1) == orders[0]


def of(first: Any, second: Any) -> Any:
    return first / second


def test_an_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(200):
        samples = (2.0 * rng.lognormal(0, 0.1, 7), rng.lognormal(0, 0.1, 7))
        _, low, high = interval([tuple(each) for each in samples], of)
        held += low <= 2.0 <= high
    assert held >= 180  # 95 % are 190; 180 is three standard deviations less


def test_an_interval_of_one_value_each_is_their_ratio_and_that_of_five_spans_their_extremes() -> None:
    assert interval([(6.0,), (3.0,)], of) == (2.0, 2.0, 2.0)
    ratio, low, high = interval([(10.0, 11.0, 12.0, 13.0, 14.0), (1.0,)], of)
    assert (ratio, low, high) == (12.0, 10.0, 14.0)


def test_a_closed_loop_tells_how_its_later_half_went(tmp_path: Path) -> None:
    grid = Grid()
    for repeat, rates in enumerate(((100, 100, 50, 50), (100, 100, 100, 100), (100, 50))):
        key = {"run_id": grid.run("wheel", ("mixed",), repeat), "shard": 0, "phase": "mixed"}
        grid.rows["phases"][-1]["wall_s"] = len(rates) + 0.4
        grid.rows["seconds"] = [row for row in grid.rows["seconds"] if row["run_id"] != key["run_id"]]
        grid.rows["seconds"] += [{**key, "second": at, "scheduled": rate} for at, rate in enumerate((*rates, 7))]
    (row,) = known(figures(results(grid, tmp_path)), "later_half", "mixed").itertuples()
    assert row.values == (0.5, 1.0), "what is cut off, and a run of two seconds, tell nothing"


def test_an_overloaded_open_loop_is_named_and_has_no_latencies(tmp_path: Path) -> None:
    grid = Grid()
    for variant, done in {"wheel": (1.0, 1.0), "lmdb": (1.0, 0.9)}.items():
        for repeat, share in enumerate(done):
            grid.run(variant, ("open_95",), repeat)
            row = grid.rows["phases"][-1]
            row["offered_per_s"] = row["messages"] / row["wall_s"] / share
    found = results(grid, tmp_path)
    assert [cell.split("/")[0] for cell in overloaded(figures(found)).cell_id] == ["lmdb"]
    assert set(latencies_of(found).variant) == {"wheel"}


# ---------------------------------------------------------------- percentiles


@given(st.lists(st.integers(0, 2**52), min_size=1))
def test_a_value_is_in_its_bucket_which_is_narrow(values: list[int]) -> None:
    array = np.array(values)
    low, behind = bounds_of(buckets_of(array))
    assert ((low <= array) & (array < behind) & (behind - low <= np.maximum(1, low / 64))).all()


def test_buckets_follow_one_another_without_gap() -> None:
    low, behind = bounds_of(np.arange(2900))
    assert (low[1:] == behind[:-1]).all()
    assert (buckets_of(low) == np.arange(2900)).all()
    assert (buckets_of(behind - 1) == np.arange(2900)).all()


def test_percentiles_are_within_a_bucket_of_the_exact_ones() -> None:
    values = np.sort(np.random.default_rng(3).lognormal(12, 1.5, 20_000).astype(np.int64))
    buckets, counts = np.unique(buckets_of(values), return_counts=True)
    shares = (0.01, 0.5, 0.9, 0.99, 0.999, LARGEST)
    found = percentiles(pd.DataFrame({"op": "x", "bucket": buckets, "n": counts}), ["op"], shares)
    assert found.ms.to_numpy() * 1e6 == pytest.approx([values[max(round(share * len(values)) - 1, 0)] for share in shares], rel=0.02)


def test_shards_merge_and_repeats_spread(tmp_path: Path) -> None:
    grid = Grid()
    for repeat, ms in enumerate((10, 30, 20)):
        key = {"run_id": grid.run("wheel", (), repeat, shards=2), "phase": "open_80"}
        grid.histogram("lateness", [ms * 1_000_000] * 60, shard=0, **key)
        grid.histogram("lateness", [1_000] * 40, shard=1, **key)
    found = latencies_of(results(grid, tmp_path)).set_index("share")
    assert set(found.total) == {300}
    assert found.loc[0.5, SPREAD].tolist() == pytest.approx([20, 10, 30, 3], rel=0.02)
    assert 20 <= found.loc[LARGEST, "median"] < 20.5
    assert 0.999 not in found.index  # a hundred values say nothing of one in a thousand


# ---------------------------------------------------------------- cells that can be compared


def test_a_slice_differs_in_what_it_goes_along_alone(tmp_path: Path) -> None:
    grid = Grid()
    for backlog in (10_000, 100_000):
        for variant in ("wheel", "rocksdb"):
            grid.run(variant, ("schedule",), backlog=backlog)
    grid.run("lmdb", ("schedule",), body_bytes=64)
    grid.run("lmdb", ("schedule",))
    grid.run("null", ("schedule",))
    (found,) = slices(known(figures(results(grid, tmp_path)), "rate", "schedule"), "backlog")
    assert set(zip(found.variant, found.backlog, strict=True)) == {
        (variant, backlog) for variant in ("wheel", "rocksdb") for backlog in (10_000, 100_000)
    }
    assert set(found.setting) == {"order-timeout, bodies of 256 B, safe from power loss, 1 shard"}


@pytest.mark.parametrize(
    ("engine", "settings", "kind"),
    [
        ("wheel", {"wheel.roll": "copy"}, "copy"),
        ("wheel", {}, "reference"),
        ("rocksdb", {"rocksdb.values": "separated", "flush": "sync"}, "separated"),
        ("rocksdb", {"flush": "sync"}, "inline"),
        ("lmdb", {"flush": "sync"}, ""),
    ],
)
def test_a_design_is_known_by_its_settings(engine: str, settings: dict[str, str], kind: str) -> None:
    assert kind_of(engine, settings.items()) == kind


def test_a_design_keeps_its_look() -> None:
    designs = [("wheel", "copy"), ("wheel", "reference"), ("rocksdb", "separated"), ("lmdb", ""), ("wheel", "reference"), ("acme", "")]
    cells = pd.DataFrame([(*design, f"{design[0]}-{at}") for at, design in enumerate(designs)], columns=["engine", "kind", "variant"])
    together = looks_of(cells)
    assert together["wheel-0"] == looks_of(cells[:1])["wheel-0"]
    assert len(set(together.values())) == len(designs)


# ---------------------------------------------------------------- how figures are written


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (words.short, {0: "0", 0.0123456: "0.0123", 999.6: "1 k", 1234: "1.23 k", 2_500_000: "2.5 M", 120: "120", 100_000: "100 k"}),
        (words.size, {64: "64 B", 4096: "4 KiB", 65_536: "64 KiB", 3 << 20: "3 MiB"}),
        (words.time_ms, {0.25: "250 µs", 12: "12 ms", 3400: "3.4 s"}),
        (words.joined, {"": "", "a": "a", "ab": "a and b", "abc": "a, b and c"}),
    ],
)
def test_how_it_is_written(write: Any, texts: dict[Any, str]) -> None:
    assert {value: write(value) for value in texts} == texts
