"""The figures behind a report: medians and spreads, percentiles, the Pareto front, comparisons and their verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from benchmarks.tests.grid_results import Grid, Point
from rmqstore_benchmarks.grid.tables import PHASES, Results, bounds_of, buckets_of, kind_of, read
from rmqstore_benchmarks.report import text as words
from rmqstore_benchmarks.report.cells import slices
from rmqstore_benchmarks.report.claims import ALL_CLAIMS, Verdict, compared, package_lines, told, verdict_of
from rmqstore_benchmarks.report.drawing import looks_of
from rmqstore_benchmarks.report.figures import front
from rmqstore_benchmarks.statistics import DRAIN, LARGEST, SPREAD, figures, known, latencies, percentiles, run_figures, spreads

CLAIMS = {claim.name: claim for claim in ALL_CLAIMS}
_POINTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)


def results(grid: Grid, directory: Path) -> Results:
    return read(grid.write(directory))


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
    found = latencies(results(grid, tmp_path)).set_index("share")
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


# ---------------------------------------------------------------- verdicts


def phase(name: str, engine: str, kind: str = "", *, of: dict[str, Any] | None = None, **metrics: float) -> pd.DataFrame:
    """Return the figures of one phase of a cell, each of one repeat."""
    point = Point(**(of or {}))._asdict()
    kind = kind or {"wheel": "reference", "rocksdb": "inline"}.get(engine, "")
    cell = {"cell_id": f"{engine}{kind}{point}", "engine": engine, "variant": f"{engine}-{kind}", "kind": kind, **point}
    rows = [{"phase": name, "metric": metric, "median": value, "low": value, "high": value} for metric, value in metrics.items()]
    return pd.DataFrame([{**cell, **row, "repeats": 1} for row in rows])


def pair(first: list[float], second: list[float]) -> pd.DataFrame:
    """Return two designs on one cell, compared by their repeats."""
    values = pd.DataFrame([("first", value) for value in first] + [("second", value) for value in second], columns=["side", "value"])
    one, other = spreads(values, ["side"])[SPREAD].to_numpy().tolist()
    return compared(pd.DataFrame([one + other], columns=SPREAD + [f"{name}_second" for name in SPREAD]))


def test_ratios_are_told_with_their_number_and_a_warning_without_repeats() -> None:
    twice = pair([2.0, 2.2], [1.0, 1.1])
    assert told(twice) == "2 × (one cell)"
    assert told(pd.concat([twice, pair([4.0, 4.0], [1.0, 1.0])])) == "2 × to 4 × (median 3 ×, 2 cells)"
    assert told(pd.concat([twice, pair([4.0], [1.0])])).endswith("2 cells, one repeat, so chance is not excluded)")


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([pair([2.0], [1.0])[:0]], Verdict.NOT_MEASURED),
        ([pair([2.0], [1.0]), pair([1.2, 1.3], [1.0, 1.1])], Verdict.CONFIRMED),
        ([pair([1.05], [1.0]), pair([1.0], [2.0])], Verdict.REFUTED),
        ([pair([2.0], [1.0]), pair([1.0], [1.0])], Verdict.DEPENDS),
        ([pair([1.0, 1.4, 1.5], [0.9, 1.0, 1.1])], Verdict.DEPENDS),  # more, but by less than the repeats differ
    ],
)
def test_a_verdict_needs_all_cells_and_clear_repeats(found: list[pd.DataFrame], verdict: Verdict) -> None:
    assert verdict_of(pd.concat(found)) is verdict


def on_both(name: str, wheel: dict[str, float], rocksdb: dict[str, float], **of: Any) -> list[pd.DataFrame]:
    return [phase(name, "wheel", of=of, **wheel), phase(name, "rocksdb", of=of, **rocksdb)]


def rolled(rocksdb: float, copying: float, pointing: float) -> list[pd.DataFrame]:
    """Return the phase ``roll`` on the cell that keeps most, and on one that keeps less."""
    few = on_both("roll", *[{"wchar_per_live_byte": 9.0, "live_bytes": 1.0}] * 2, backlog=1)
    most = on_both("roll", *({"wchar_per_live_byte": each, "live_bytes": 9.0} for each in (pointing, rocksdb)))
    return [*few, *most, phase("roll", "wheel", "copy", wchar_per_live_byte=copying, live_bytes=9.0)]


def cold(limit: float) -> list[pd.DataFrame]:
    read = ({"device_read_per_user_byte": each, "memory_limit_per_user_byte": limit} for each in (3.0, 1.0))
    return on_both("cold_drain", *read)


def compacting(compacted: float) -> list[pd.DataFrame]:
    return on_both("schedule", {"cpu_us_per_message": 3.0}, {"cpu_us_per_message": 9.0, "compaction_per_user_byte": compacted})


def balance(writes: float, reads: float) -> list[pd.DataFrame]:
    others = {"rocksdb": 1.0, "lmdb": 1.0, "memory": 99.0}
    wheel = [phase("schedule", "wheel", rate=writes), phase(DRAIN, "wheel", rate=reads)]
    return wheel + [phase(name, engine, rate=rate) for name in ("schedule", DRAIN) for engine, rate in others.items()]


def growing(body_bytes: int) -> list[pd.DataFrame]:
    rates = {10_000: 3.0, 1_000_000: 1.0, 100_000: 2.0}
    return [phase("schedule", "rocksdb", rate=rate, of={"body_bytes": body_bytes, "backlog": at}) for at, rate in rates.items()]


def unequal(wheel: float) -> list[pd.DataFrame]:
    """Return one cell that both have, beside others that only RocksDB has and that tell otherwise."""
    others = [phase("schedule", "rocksdb", rate=9.0, of={"backlog": 7}), phase("mixed", "rocksdb", rate=9.0)]
    return [*on_both("schedule", {"rate": wheel}, {"rate": 1.0}), *others, phase("schedule", "rocksdb", "separated", rate=9.0)]


@pytest.mark.parametrize(
    ("name", "phases", "verdict", "evidence"),
    [
        ("sorting on write", unequal(2.0), Verdict.CONFIRMED, "the wheel schedules 2 × (one cell, one repeat"),
        ("sorting on write", unequal(1.0), Verdict.REFUTED, "the wheel schedules 1 × (one cell, one repeat"),
        ("no rolling", rolled(0.01, 2.0, 0.1), Verdict.DEPENDS, "9 B kept: RocksDB 0.01, the wheel by"),
        ("no rolling", rolled(0.01, 2.0, 1.5), Verdict.CONFIRMED, "the wheel by copy 2"),
        ("no rolling", rolled(0.01, 0.1, 0.1), Verdict.REFUTED, "the wheel by reference 0.1"),
        ("no rolling", rolled(0.50, 2.0, 0.1), Verdict.REFUTED, "RocksDB 0.5"),
        (
            "no rolling",
            [each for each in rolled(0.01, 2.0, 0.1) if "wheel" in each.engine.array],
            Verdict.NOT_MEASURED,
            "it takes the phase",
        ),
        ("less page-cache pollution", cold(0.25), Verdict.CONFIRMED, "reads 3 × (one cell"),
        ("less page-cache pollution", cold(1.5), Verdict.NOT_MEASURED, "less memory than messages"),
        ("random reads, page cache", cold(0.25), Verdict.CONFIRMED, "reads 3 bytes from the device a user byte"),
        ("random reads, page cache", cold(1.5), Verdict.NOT_MEASURED, "memory limit below"),
        ("compaction costs CPU", compacting(0.0), Verdict.NOT_MEASURED, "where compaction ran"),
        ("compaction costs CPU", compacting(0.5), Verdict.CONFIRMED, "RocksDB takes 3 ×"),
        ("reading given for writing", balance(2.0, 0.5), Verdict.CONFIRMED, "schedules 2 × as fast and drains 0.5 × as fast"),
        ("reading given for writing", balance(2.0, 2.0), Verdict.REFUTED, "slower at reading on 0"),
        ("reading given for writing", balance(0.5, 0.5), Verdict.REFUTED, "faster at writing on 0 of 1 cells"),
        ("slower as it grows", growing(256), Verdict.NOT_MEASURED, "bodies of 4 KiB or more"),
        (
            "slower as it grows",
            growing(4096),
            Verdict.CONFIRMED,
            "smallest backlog is 3 × (one cell, one repeat, so chance is not excluded)",
        ),
    ],
)
def test_a_claim_is_weighed_on_like_cells(name: str, phases: list[pd.DataFrame], verdict: Verdict, evidence: str) -> None:
    judged = CLAIMS[name].judge(pd.concat(phases, ignore_index=True))
    assert judged.verdict is verdict
    assert evidence in judged.evidence


def test_every_claim_stands_without_data() -> None:
    for name, claim in CLAIMS.items():
        if name != "simple flow":
            assert claim.judge(phase("x", "wheel", rate=1.0)[:0]).verdict is Verdict.NOT_MEASURED, name
        assert claim.rule
    assert len(CLAIMS) == 10


def test_lines_of_source_leave_out_comments_and_are_none_of_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "__init__.py").write_text('"""Acme."""\n\n# why\nONE = 1\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert package_lines("acme") == 2
    assert package_lines("acme", "no_such_package") == 0


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
