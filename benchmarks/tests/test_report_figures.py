"""The figures behind a report: medians and spreads, percentiles, the Pareto front, comparisons and their verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tests.grid_results import Grid, Point
from rmqstore_benchmarks.grid.results import Results, kind_of, read
from rmqstore_benchmarks.grid.tables import PHASES, bounds_of, buckets_of
from rmqstore_benchmarks.report import text as words
from rmqstore_benchmarks.report.cells import slices
from rmqstore_benchmarks.report.claims import (
    ALL_CLAIMS,
    ROCKSDB,
    WHEEL,
    Verdict,
    compared,
    comparisons,
    package_lines,
    told,
    verdict_of,
)
from rmqstore_benchmarks.report.drawing import Look, looks_of
from rmqstore_benchmarks.report.figures import LATENESS, front
from rmqstore_benchmarks.statistics import DRAIN, LARGEST, SPREAD, figures, known, latencies, percentiles, run_figures, spreads

CLAIMS = {claim.name: claim for claim in ALL_CLAIMS}
_POINTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)


def results(grid: Grid, directory: Path) -> Results:
    return read(grid.write(directory))


# ---------------------------------------------------------------- the front


def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one != other and one[0] >= other[0] and one[1] >= other[1]


@given(_POINTS)
def test_the_front_is_what_no_point_beats(points: list[tuple[int, int]]) -> None:
    assert front(pd.DataFrame(points)).tolist() == [not any(beats(other, point) for other in points) for point in points]


# ---------------------------------------------------------------- runs and repeats


def run_of(*shards: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a run from columns of its shards; columns that are not given are not told."""
    table = pd.DataFrame(shards, columns=PHASES.names, dtype=float).assign(run_id="r", phase="schedule")
    found: dict[str, float] = run_figures(table).iloc[0].dropna().to_dict()
    return found


def test_rates_of_shards_add_up_and_bytes_of_the_device_do_not() -> None:
    shard = {"messages": 100, "user_bytes": 1000, "wchar_bytes": 3000}
    found = run_of(
        shard | {"wall_s": 1.0, "device_write_bytes": 8000, "stalls": 1, "longest_call_ms": 7.0},
        shard | {"wall_s": 2.0, "device_write_bytes": 8200, "stalls": 2, "longest_call_ms": 5.0},
    )
    assert found == {
        "messages": 200,
        "wall_s": 2.0,
        "us_per_message": 1e4,
        "stalls": 3,
        "longest_call_ms": 7.0,
        "rate": 150.0,
        "user_bytes_per_s": 1500.0,
        "wchar_per_user_byte": 3.0,
        "device_write_per_user_byte": 4.1,
    }


def test_what_one_shard_does_not_tell_is_not_told_and_without_messages_there_is_no_rate() -> None:
    assert run_of({"messages": 1, "wall_s": 1.0, "stalls": 5}, {"messages": 1, "wall_s": 1.0}) == {
        "messages": 2,
        "wall_s": 1.0,
        "us_per_message": 5e5,
        "rate": 2.0,
    }
    assert run_of({"messages": 0, "wall_s": 1.0}) == {"messages": 0, "wall_s": 1.0}


def test_a_drain_takes_as_long_as_both_its_phases(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("wheel", Point(), 0, ("hand_over", "pop_ack"), seconds=1)
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
        run_id = grid.run("wheel", Point(shards=2), repeat, (), seconds=1)
        grid.histogram(run_id, 0, "open_80", "lateness", [ms * 1_000_000] * 60)
        grid.histogram(run_id, 1, "open_80", "lateness", [1_000] * 40)
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
            grid.run(variant, Point(backlog=backlog), 0, ("schedule",), seconds=1)
    grid.run("lmdb", Point(body_bytes=64), 0, ("schedule",), seconds=1)
    grid.run("lmdb", Point(), 0, ("schedule",), seconds=1)
    grid.run("null", Point(), 0, ("schedule",), seconds=1)
    (found,) = slices(known(figures(results(grid, tmp_path)), "rate", "schedule"), ("backlog",))
    assert set(zip(found.rows.variant, found.rows.backlog, strict=True)) == {
        (variant, backlog) for variant in ("wheel", "rocksdb") for backlog in (10_000, 100_000)
    }
    assert found.setting == "order-timeout, bodies of 256 B, safe from power loss, 1 shard"


@pytest.mark.parametrize(
    ("engine", "settings", "kind"),
    [
        ("wheel", {"wheel.roll": "copy"}, "copy"),
        ("wheel", {}, "reference"),
        ("rocksdb", {"values": "separated"}, "separated"),
        ("rocksdb", {"rocksdb__values": "inline"}, "inline"),
        ("lmdb", {"flush": "sync"}, ""),
    ],
)
def test_a_design_is_known_by_its_settings(engine: str, settings: dict[str, str], kind: str) -> None:
    assert kind_of(engine, settings.items()) == kind


def test_a_design_keeps_its_look() -> None:
    designs = [("wheel", "copy"), ("wheel", "reference"), ("rocksdb", "separated"), ("lmdb", ""), ("wheel", "reference"), ("acme", "")]
    cells = pd.DataFrame(
        [(engine, kind, f"{engine}-{number}") for number, (engine, kind) in enumerate(designs)], columns=["engine", "kind", "variant"]
    )
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


def pairs(*found: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([compared(phase("x", "wheel", rate=1.0).assign(median_second=1, low_second=1, high_second=1))[:0], *found])


def test_ratios_are_told_with_their_number_and_a_warning_without_repeats() -> None:
    twice = pair([2.0, 2.2], [1.0, 1.1])
    assert told(twice) == "2 × (one cell)"
    assert told(pairs(twice, pair([4.0, 4.0], [1.0, 1.0]))) == "2 × to 4 × (median 3 ×, 2 cells)"
    assert told(pairs(twice, pair([4.0], [1.0]))).endswith("2 cells, one repeat, so chance is not excluded)")


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([], Verdict.NOT_MEASURED),
        ([pair([2.0], [1.0]), pair([1.2, 1.3], [1.0, 1.1])], Verdict.CONFIRMED),
        ([pair([1.05], [1.0]), pair([1.0], [2.0])], Verdict.REFUTED),
        ([pair([2.0], [1.0]), pair([1.0], [1.0])], Verdict.DEPENDS),
        ([pair([1.0, 1.4, 1.5], [0.9, 1.0, 1.1])], Verdict.DEPENDS),  # more, but by less than the repeats differ
    ],
)
def test_a_verdict_needs_all_cells_and_clear_repeats(found: list[pd.DataFrame], verdict: Verdict) -> None:
    assert verdict_of(pairs(*found)) is verdict


def verdict_on(name: str, *phases: pd.DataFrame) -> Verdict:
    return CLAIMS[name].judge(pd.concat(phases, ignore_index=True)).verdict


def test_only_equal_cells_are_compared() -> None:
    phases = [
        phase("schedule", "wheel", rate=2.0),
        phase("schedule", "rocksdb", rate=1.0),
        phase("schedule", "rocksdb", rate=9.0, of={"backlog": 7}),
        phase("mixed", "rocksdb", rate=9.0),
        phase("schedule", "rocksdb", "separated", rate=9.0),
    ]
    found = comparisons(known(pd.concat(phases), "rate", "schedule", "mixed"), WHEEL, ROCKSDB)
    assert found.ratio.tolist() == [2.0]


@pytest.mark.parametrize(("wheel", "verdict"), [(2.0, Verdict.CONFIRMED), (1.0, Verdict.REFUTED)])
def test_a_claim_of_a_ratio_has_its_verdict_and_evidence(wheel: float, verdict: Verdict) -> None:
    judgement = CLAIMS["sorting on write"].judge(
        pd.concat([phase("schedule", "wheel", rate=wheel), phase("schedule", "rocksdb", rate=1.0)])
    )
    assert judgement.verdict is verdict
    assert f"the wheel schedules {wheel:g} × (one cell" in judgement.evidence


@pytest.mark.parametrize(
    ("rocksdb", "copying", "pointing", "verdict"),
    [
        (0.01, 2.0, 0.1, Verdict.DEPENDS),
        (0.01, 2.0, 1.5, Verdict.CONFIRMED),
        (0.01, 0.1, 0.1, Verdict.REFUTED),
        (0.50, 2.0, 0.1, Verdict.REFUTED),
    ],
)
def test_rolling(rocksdb: float, copying: float, pointing: float, verdict: Verdict) -> None:
    phases = [
        phase("roll", "rocksdb", wchar_per_live_byte=rocksdb, live_bytes=9.0),
        phase("roll", "wheel", "copy", wchar_per_live_byte=copying, live_bytes=9.0),
        phase("roll", "wheel", wchar_per_live_byte=pointing, live_bytes=9.0),
    ]
    few = [phase("roll", engine, wchar_per_live_byte=9.0, live_bytes=1.0, of={"backlog": 1}) for engine in ("rocksdb", "wheel")]
    assert verdict_on("no rolling", *few, *phases) is verdict
    assert verdict_on("no rolling", *phases[1:]) is Verdict.NOT_MEASURED


@pytest.mark.parametrize(("limit", "verdict"), [(0.25, Verdict.CONFIRMED), (1.5, Verdict.NOT_MEASURED)])
@pytest.mark.parametrize("name", ["less page-cache pollution", "random reads, page cache"])
def test_a_cold_drain_counts_when_memory_was_short(name: str, limit: float, verdict: Verdict) -> None:
    reads = {"wheel": 3.0, "rocksdb": 1.0}
    phases = [phase("cold_drain", each, device_read_per_user_byte=reads[each], memory_limit_per_user_byte=limit) for each in reads]
    assert verdict_on(name, *phases) is verdict


def test_compaction_that_did_not_run_proves_nothing() -> None:
    wheel = phase("schedule", "wheel", cpu_us_per_message=3.0)
    idle, busy = (phase("schedule", "rocksdb", cpu_us_per_message=9.0, compaction_per_user_byte=each) for each in (0.0, 0.5))
    assert verdict_on("compaction costs CPU", idle, wheel) is Verdict.NOT_MEASURED
    assert verdict_on("compaction costs CPU", busy, wheel) is Verdict.CONFIRMED


@pytest.mark.parametrize(
    ("writes", "reads", "verdict"),
    [(2.0, 0.5, Verdict.CONFIRMED), (2.0, 2.0, Verdict.REFUTED), (0.5, 0.5, Verdict.REFUTED)],
)
def test_the_wheel_gives_reading_for_writing(writes: float, reads: float, verdict: Verdict) -> None:
    phases = [phase("schedule", "wheel", rate=writes), phase(DRAIN, "wheel", rate=reads)]
    rates = {"rocksdb": 1.0, "lmdb": 1.0, "memory": 99.0}
    phases += [phase(name, engine, rate=rate) for name in ("schedule", DRAIN) for engine, rate in rates.items()]
    assert verdict_on("reading given for writing", *phases) is verdict


@pytest.mark.parametrize(("body_bytes", "verdict"), [(256, Verdict.NOT_MEASURED), (4096, Verdict.CONFIRMED)])
def test_growth_needs_large_bodies(body_bytes: int, verdict: Verdict) -> None:
    rates = {10_000: 3.0, 1_000_000: 1.0, 100_000: 2.0}
    phases = [phase("schedule", "rocksdb", rate=rate, of={"body_bytes": body_bytes, "backlog": backlog}) for backlog, rate in rates.items()]
    judgement = CLAIMS["slower as it grows"].judge(pd.concat(phases))
    assert judgement.verdict is verdict
    if verdict is Verdict.CONFIRMED:
        assert judgement.evidence.startswith(
            "with large values its rate at the smallest backlog is 3 × (one cell, one repeat, so chance is not excluded)"
        )


def test_every_claim_stands_without_data() -> None:
    for name, claim in CLAIMS.items():
        if name != "simple flow":
            assert verdict_on(name, phase("x", "wheel", rate=1.0)[:0]) is Verdict.NOT_MEASURED, name
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
    ("value", "text"),
    [(0, "0"), (0.0123456, "0.0123"), (999.6, "1 k"), (1234, "1.23 k"), (2_500_000, "2.5 M"), (120, "120"), (100_000, "100 k")],
)
def test_short(value: float, text: str) -> None:
    assert words.short(value) == text


def test_units() -> None:
    assert [words.size(each) for each in (64, 4096, 65_536, 3 << 20)] == ["64 B", "4 KiB", "64 KiB", "3 MiB"]
    assert [words.time_ms(each) for each in (0.25, 12, 3400)] == ["250 µs", "12 ms", "3.4 s"]
    assert [words.joined(list(each)) for each in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]


# ---------------------------------------------------------------- what is said of it


def test_what_falls_may_change_most() -> None:
    rows = []
    for variant, at_ms in (("wheel", {80: 200.0, 95: 50.0}), ("rocksdb", {80: 100.0, 95: 150.0})):
        for load, ms in at_ms.items():
            for share in (0.5, 0.99):
                row = {"load_percent": load, "variant": variant, "share": share, "unit": "ms", "setting": ""}
                rows.append({**row, "median": ms, "low": ms, "high": ms})
    looks = {variant: Look("#000000", "o", "-") for variant in ("wheel", "rocksdb")}
    finding = LATENESS.draw(pd.DataFrame(rows), looks).finding
    assert finding.endswith("At 95 % it changes most for wheel, from 200 ms to 50 ms.")
