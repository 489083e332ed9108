"""The figures behind a report: medians and spreads, percentiles, the Pareto front, comparisons and their verdicts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tests.grid_results import Grid, Point
from rmqstore_benchmarks.grid.results import Cell, Results, read
from rmqstore_benchmarks.report import text as words
from rmqstore_benchmarks.report.cells import Look, kind_of, looks_of, slices
from rmqstore_benchmarks.report.claims import ALL_CLAIMS, ROCKSDB, WHEEL, Comparison, Verdict, code_lines, comparisons, told, verdict_of
from rmqstore_benchmarks.report.figures import LATENESS, front
from rmqstore_benchmarks.statistics import (
    DRAIN,
    LARGEST,
    CellPhase,
    at_shares,
    bucket_of,
    cell_phases,
    latencies,
    percentile,
    run_metrics,
    spread,
)

CLAIMS = {claim.name: claim for claim in ALL_CLAIMS}
_POINTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12)


def results(grid: Grid, directory: Path) -> Results:
    return read(grid.write(directory))


# ---------------------------------------------------------------- the front


def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one != other and one[0] >= other[0] and one[1] >= other[1]


@given(_POINTS)
def test_the_front_is_what_no_point_beats(points: list[tuple[int, int]]) -> None:
    found = front(points)
    assert set(found) == {at for at, point in enumerate(points) if not any(beats(other, point) for other in points)}
    assert len(found) == len(set(found))
    assert [points[at][0] for at in found] == sorted((points[at][0] for at in found), reverse=True)


# ---------------------------------------------------------------- runs and repeats


def shard(**columns: Any) -> dict[str, Any]:
    names = (
        "messages offered_rate wall_s cpu_s user_bytes live_bytes wchar_bytes device_write_bytes device_read_bytes disk_bytes "
        "anon_peak_bytes compaction_bytes stalls longest_call_ms rolled memory_limit_bytes call_s slowest_thread first_queue_dry"
    )
    return dict.fromkeys(names.split()) | columns


def test_rates_of_shards_add_up_and_bytes_of_the_device_do_not() -> None:
    found = run_metrics(
        [
            shard(messages=100, wall_s=1.0, user_bytes=1000, wchar_bytes=3000, device_write_bytes=8000, stalls=1, longest_call_ms=7.0),
            shard(messages=100, wall_s=2.0, user_bytes=1000, wchar_bytes=3000, device_write_bytes=8200, stalls=2, longest_call_ms=5.0),
        ]
    )
    assert found == {
        "messages": 200,
        "wall_s": 2.0,
        "stalls": 3,
        "longest_call_ms": 7.0,
        "rate": 150.0,
        "user_bytes_per_s": 1500.0,
        "wchar_per_user_byte": 3.0,
        "device_write_per_user_byte": 4.1,
    }


def test_what_one_shard_does_not_tell_is_not_told() -> None:
    found = run_metrics([shard(messages=1, wall_s=1.0, rolled=5), shard(messages=1, wall_s=1.0)])
    assert found == {"messages": 2, "wall_s": 1.0, "rate": 2.0}


def test_a_phase_without_messages_has_no_rate() -> None:
    assert "rate" not in run_metrics([shard(messages=0, wall_s=1.0)])


def test_spreads_have_median_lowest_and_highest() -> None:
    assert spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0, 3)
    assert spread([5.0]) == (5.0, 5.0, 5.0, 1)
    assert spread([]) is None


def test_a_drain_takes_as_long_as_both_its_phases(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("wheel", Point(), 0, ("hand_over", "pop_ack"), seconds=1)
    by_phase = {each.phase: each.metrics["rate"].median for each in cell_phases(results(grid, tmp_path))}
    assert 1 / by_phase[DRAIN] == pytest.approx(1 / by_phase["hand_over"] + 1 / by_phase["pop_ack"])


# ---------------------------------------------------------------- percentiles


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=300))
def test_percentiles_are_those_of_the_histogram(values: list[int]) -> None:
    counts = Counter(map(bucket_of, values))
    found = at_shares(counts, (0.5, 0.9, 0.99))
    for share, ms in found.items():
        assert ms == percentile(counts, share) / 1e6
    assert set(found) == {share for share in (0.5, 0.9, 0.99) if len(values) * (1 - share) >= 1 - 1e-9}


def test_shards_merge_and_repeats_spread(tmp_path: Path) -> None:
    grid = Grid()
    for repeat, ms in enumerate((10, 30, 20)):
        run_id = grid.run("wheel", Point(shards=2), repeat, (), seconds=1)
        grid.histogram(run_id, 0, "open_80", "lateness", [ms * 1_000_000] * 60)
        grid.histogram(run_id, 1, "open_80", "lateness", [1_000] * 40)
    (found,) = latencies(results(grid, tmp_path))
    assert found.total == 300
    assert found.at_ms[0.5].median == pytest.approx(20, rel=0.02)
    assert (found.at_ms[0.5].low, found.at_ms[0.5].high) == (pytest.approx(10, rel=0.02), pytest.approx(30, rel=0.02))
    assert 20 <= found.at_ms[LARGEST].median < 20.5
    assert 0.999 not in found.at_ms  # a hundred values say nothing of one in a thousand


# ---------------------------------------------------------------- cells that can be compared


def test_a_slice_differs_in_what_it_goes_along_alone(tmp_path: Path) -> None:
    grid = Grid()
    for backlog in (10_000, 100_000):
        for variant in ("wheel", "rocksdb"):
            grid.run(variant, Point(backlog=backlog), 0, ("schedule",), seconds=1)
    grid.run("lmdb", Point(body_bytes=64), 0, ("schedule",), seconds=1)
    grid.run("lmdb", Point(), 0, ("schedule",), seconds=1)
    grid.run("null", Point(), 0, ("schedule",), seconds=1)
    (found,) = slices(cell_phases(results(grid, tmp_path)), ("backlog",))
    assert {(each.cell.variant, each.cell.backlog) for each in found.rows} == {
        (variant, backlog) for variant in ("wheel", "rocksdb") for backlog in (10_000, 100_000)
    }
    assert found.setting == "order-timeout, bodies of 256 B, safe from power loss, 1 shard"


def cell(engine: str, settings: dict[str, str] | None = None, variant: str = "", **point: Any) -> Cell:
    return Cell(f"{engine}{variant}{point}", engine, variant or engine, tuple((settings or {}).items()), **Point(**point)._asdict())


def test_a_design_is_known_by_its_settings_and_keeps_its_look() -> None:
    cells = [
        cell("wheel", {"wheel.roll": "copy"}, "a"),
        cell("wheel", {}, "b"),
        cell("rocksdb", {"values": "separated"}, "c"),
        cell("rocksdb", {"rocksdb__values": "inline"}, "d"),
        cell("lmdb", {}, "e"),
    ]
    assert [kind_of(each) for each in cells] == ["copy", "reference", "separated", "inline", ""]
    alone, together = looks_of(cells[:1]), looks_of([*cells, cell("wheel", {}, "b-again"), cell("acme")])
    assert together["a"] == alone["a"]
    assert len(set(together.values())) == 7


# ---------------------------------------------------------------- verdicts


def test_ratios_are_told_with_their_number_and_a_warning_without_repeats() -> None:
    twice = compared([2.0, 2.2], [1.0, 1.1])
    assert told([twice]) == "2 × (one cell)"
    assert told([twice, compared([4.0, 4.0], [1.0, 1.0])]) == "2 × to 4 × (median 3 ×, 2 cells)"
    assert told([twice, compared([4.0], [1.0])]).endswith("2 cells, one repeat, so chance is not excluded)")


def compared(first: list[float], second: list[float]) -> Comparison:
    one, other = spread(first), spread(second)
    assert one is not None
    assert other is not None
    return Comparison(cell("wheel"), one, other)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([], Verdict.NOT_MEASURED),
        ([compared([2.0], [1.0]), compared([1.2, 1.3], [1.0, 1.1])], Verdict.CONFIRMED),
        ([compared([1.05], [1.0]), compared([1.0], [2.0])], Verdict.REFUTED),
        ([compared([2.0], [1.0]), compared([1.0], [1.0])], Verdict.DEPENDS),
        ([compared([1.0, 1.4, 1.5], [0.9, 1.0, 1.1])], Verdict.DEPENDS),  # more, but by less than the repeats differ
    ],
)
def test_a_verdict_needs_all_cells_and_clear_repeats(found: list[Comparison], verdict: Verdict) -> None:
    assert verdict_of(found) is verdict


def phase(name: str, of: Cell, **metrics: float) -> CellPhase:
    return CellPhase(of, name, {key: found for key, value in metrics.items() if (found := spread([value]))})


def test_only_equal_cells_are_compared() -> None:
    phases = [
        phase("schedule", cell("wheel"), rate=2.0),
        phase("schedule", cell("rocksdb"), rate=1.0),
        phase("schedule", cell("rocksdb", backlog=7), rate=9.0),
        phase("mixed", cell("rocksdb"), rate=9.0),
        phase("schedule", cell("rocksdb", {"rocksdb.values": "separated"}), rate=9.0),
    ]
    (found,) = comparisons(phases, "rate", WHEEL, ROCKSDB)
    assert found.ratio == 2.0


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
        phase("roll", cell("rocksdb"), wchar_per_live_byte=rocksdb, live_bytes=9.0),
        phase("roll", cell("wheel", {"roll": "copy"}), wchar_per_live_byte=copying, live_bytes=9.0),
        phase("roll", cell("wheel"), wchar_per_live_byte=pointing, live_bytes=9.0),
    ]
    few = [phase("roll", cell(engine, backlog=1), wchar_per_live_byte=9.0, live_bytes=1.0) for engine in ("rocksdb", "wheel")]
    assert CLAIMS["no rolling"].judge(few + phases).verdict is verdict
    assert CLAIMS["no rolling"].judge(phases[1:]).verdict is Verdict.NOT_MEASURED


@pytest.mark.parametrize(("limit", "verdict"), [(0.25, Verdict.CONFIRMED), (1.5, Verdict.NOT_MEASURED)])
def test_a_cold_drain_counts_when_memory_was_short(limit: float, verdict: Verdict) -> None:
    phases = [
        phase("cold_drain", cell("wheel"), device_read_per_user_byte=3.0, memory_limit_per_user_byte=limit),
        phase("cold_drain", cell("rocksdb"), device_read_per_user_byte=1.0, memory_limit_per_user_byte=limit),
    ]
    for name in ("less page-cache pollution", "random reads, page cache"):
        assert CLAIMS[name].judge(phases).verdict is verdict


def test_compaction_that_did_not_run_proves_nothing() -> None:
    phases = [
        phase("schedule", cell("rocksdb"), cpu_us_per_message=9.0, compaction_per_user_byte=0.0),
        phase("schedule", cell("wheel"), cpu_us_per_message=3.0),
    ]
    judgement = CLAIMS["compaction costs CPU"].judge(phases)
    assert judgement.verdict is Verdict.NOT_MEASURED
    assert "no compaction ran" in judgement.evidence
    phases[0] = phase("schedule", cell("rocksdb"), cpu_us_per_message=9.0, compaction_per_user_byte=0.5)
    assert CLAIMS["compaction costs CPU"].judge(phases).verdict is Verdict.CONFIRMED


@pytest.mark.parametrize(
    ("writes", "reads", "verdict"),
    [(2.0, 0.5, Verdict.CONFIRMED), (2.0, 2.0, Verdict.REFUTED), (0.5, 0.5, Verdict.REFUTED)],
)
def test_the_wheel_gives_reading_for_writing(writes: float, reads: float, verdict: Verdict) -> None:
    phases = [phase("schedule", cell("wheel"), rate=writes), phase(DRAIN, cell("wheel"), rate=reads)]
    others = [phase(name, cell(engine), rate=1.0) for name in ("schedule", DRAIN) for engine in ("rocksdb", "lmdb")]
    others += [phase(name, cell("memory"), rate=99.0) for name in ("schedule", DRAIN)]
    assert CLAIMS["reading given for writing"].judge(phases + others).verdict is verdict


def test_growth_needs_large_bodies(tmp_path: Path) -> None:
    for body_bytes, verdict in ((256, Verdict.NOT_MEASURED), (4096, Verdict.CONFIRMED)):
        phases = [
            phase("schedule", cell("rocksdb", body_bytes=body_bytes, backlog=backlog), rate=rate)
            for backlog, rate in ((10_000, 3.0), (1_000_000, 1.0), (100_000, 2.0))
        ]
        judgement = CLAIMS["slower as it grows"].judge(phases)
        assert judgement.verdict is verdict
    assert judgement.evidence.startswith(
        "with large values its rate at the smallest backlog is 3 × (one cell, one repeat, so chance is not excluded)"
    )


def test_every_claim_stands_without_data() -> None:
    for name, claim in CLAIMS.items():
        if name != "simple flow":
            assert claim.judge([]).verdict is Verdict.NOT_MEASURED, name
        assert claim.rule
    assert len(CLAIMS) == 10


def test_lines_of_code_leave_out_comments_and_docstrings(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        '"""A\nmodule."""\n\n# why\nTEXT = """kept\nas it is"""\n\n\ndef one():\n    """Doc."""\n    return (\n        1\n    )\n'
    )
    assert code_lines(file) == 6


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
    finding = LATENESS.draw(pa.Table.from_pylist(rows), looks).finding
    assert finding.endswith("At 95 % it changes most for wheel, from 200 ms to 50 ms.")
