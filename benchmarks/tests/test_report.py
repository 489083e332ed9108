"""The report on a run of the grid: every figure, finding and claim, and what it does with results that lack something."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.tests.conftest import run_command
from benchmarks.tests.grid_results import COLD, STEADY, Grid
from rmqstore.errors import RmqstoreError, StorePathError, TransferError
from rmqstore_benchmarks.grid.tables import TABLES

pytest.importorskip("matplotlib", reason="the report needs rmqstore-benchmarks[report]")

from rmqstore_benchmarks.report.claims import ALL_CLAIMS, LEAST_REPEATS, Verdict
from rmqstore_benchmarks.report.figures import PLOTS
from rmqstore_benchmarks.report.making import Report, make
from rmqstore_benchmarks.report.text import NOT_TOLD

DPI = 40
SWEEP = ("fill", "schedule", "hand_over", "pop_ack", "recover")


def everything() -> Grid:
    """Return results that every figure has its data in, as few as will do."""
    grid = Grid()
    for variant in ("wheel", "wheel-copy", "rocksdb", "rocksdb-separated", "lmdb"):
        for repeat in range(LEAST_REPEATS):
            grid.run(variant, STEADY, repeat, seconds=4)
        grid.run(variant, COLD, workload="eight-oclock")
        grid.run(variant, SWEEP, backlog=1_000_000)
        grid.run(variant, SWEEP, body_bytes=4096)
        grid.run(variant, SWEEP, body_bytes=4096, backlog=1_000_000)
        grid.run(variant, ("schedule", "mixed"), shards=2)
        grid.run(variant, ("fill", "roll"), workload="reminder")
    for variant in ("null", "bare", "bare-by-arrival", "bare-uncompacted"):
        grid.run(variant, ("fill", "schedule", "hand_over"))
    return grid


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    directory = everything().write(tmp_path_factory.mktemp("grid"))
    return make(directory, directory / "report", dpi=DPI)


def test_every_figure_has_picture_data_and_a_finding_with_a_figure_in_it(made: Report) -> None:
    assert not made.left_out
    assert list(made.findings) == [plot.title for plot in PLOTS]
    for plot in PLOTS:
        assert (made.page.parent / f"{plot.name}.png").read_bytes().startswith(b"\x89PNG")
        assert len((made.page.parent / f"{plot.name}.csv").read_text().splitlines()) > 2
        assert re.search(r"\d", made.findings[plot.title]), plot.title
        assert "null" not in made.findings[plot.title], "what is no engine stands beside none"


@pytest.mark.parametrize(
    ("title", "finding"),
    [
        (
            "Balance of writing and reading",
            "With 1 M timers pending, wheel schedules fastest (230 k/s) and wheel drains fastest (115 k/s);",
        ),
        ("Rate over backlog", "Schedule (1 M timers pending): from 61 k/s for lmdb to 230 k/s for wheel."),
        (
            "Write, read and space amplification",
            "Written by the process (schedule, hand over and pop + ack): from 7.8 × for wheel to 29.4 ×",
        ),
        ("The claims, cell by cell", "Not shown: no rolling, less page-cache pollution, sorting on write, "),
        ("Latency over load", "lateness p99 (95 %): from "),
    ],
)
def test_a_finding_is_what_the_rows_show(made: Report, title: str, finding: str) -> None:
    assert made.findings[title].startswith(finding)


def test_the_page_needs_no_other_file_and_links_of_the_markdown_page_lead_somewhere(made: Report) -> None:
    page = made.page.read_text()
    found = re.findall(r"""\s(?:src|href|srcset|data)=["']([^"']*)""", page)
    assert len(found) == len(PLOTS)
    assert all(each.startswith("data:image/png;base64,") for each in found)
    assert not re.search(r"<(?:script|link|iframe)|url\(|@import|https?://", page)
    assert page.count("<details>") == len(PLOTS)
    links = re.findall(r"(?<!\\)\[[^\]]*\]\(([^)]+)\)", (made.page.parent / "report.md").read_text())
    assert len(links) == 2 * len(PLOTS)
    assert all((made.page.parent / link).is_file() for link in links)


def test_the_summary_has_a_row_for_each_figure_of_each_phase_of_each_cell(made: Report) -> None:
    rows = pq.read_table(made.page.parent / "summary.parquet").to_pandas()
    assert not rows.duplicated(["cell_id", "phase", "metric"]).any()
    rates = rows[(rows.phase == "schedule") & (rows.metric == "rate")].set_index("cell_id")
    wheel = rates.loc["wheel/order-timeout/256/100000/power_loss/1", ["median", "low", "high", "repeats"]]
    assert wheel.tolist() == pytest.approx([276_000, 230_000, 322_000, 5])


def test_a_report_is_made_again_from_what_it_published(made: Report, tmp_path: Path) -> None:
    again = make(made.page.parent, tmp_path, dpi=DPI)
    assert (again.findings, again.claims) == (made.findings, made.claims)
    assert (tmp_path / "report.md").read_text() == (made.page.parent / "report.md").read_text()
    assert make(tmp_path, tmp_path, dpi=DPI).findings == made.findings


def test_every_claim_is_judged(made: Report) -> None:
    assert list(made.verdicts) == [claim.name for claim in ALL_CLAIMS]
    assert Verdict.NOT_MEASURED not in made.verdicts.values()


# ---------------------------------------------------------------- results that lack something


def report_on(grid: Grid, place: Path) -> Report:
    return make(grid.write(place), place / "report", dpi=DPI)


def metrics_of(made: Report, name: str) -> set[str]:
    return set(pq.read_table(made.page.parent / "summary.parquet")[name].to_pylist())


def test_one_phase_of_one_run_makes_a_report_that_says_what_is_missing(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("wheel", ("fill",))
    grid.environment = None
    made = report_on(grid, tmp_path)
    assert not made.findings
    assert made.left_out == list(PLOTS)
    assert {verdict for name, verdict in made.verdicts.items() if name != "simple flow"} == {Verdict.NOT_MEASURED}
    page = made.page.read_text()
    assert all(plot.needs in page for plot in made.left_out)


def test_a_refused_run_has_no_figure_and_is_listed(tmp_path: Path) -> None:
    grid = Grid()
    for backlog in (10_000, 100_000):
        grid.run("wheel", SWEEP, backlog=backlog)
        grid.run("lmdb", outcome="refused", reason="message 81 came | twice", backlog=backlog)
    made = report_on(grid, tmp_path)
    assert made.outcomes == "4 cells, 4 runs: 2 good, 2 refused"
    assert "lmdb" not in "".join([*made.findings.values(), *(file.read_text() for file in made.page.parent.glob("*.csv"))])
    assert metrics_of(made, "variant") == {"wheel"}
    assert made.page.read_text().count("message 81 came | twice") == 2
    assert (made.page.parent / "report.md").read_text().count("message 81 came \\| twice") == 2


def test_what_is_not_told_is_left_out_and_never_zero(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("rocksdb", ("schedule", "hand_over", "pop_ack"))
    for row in grid.rows["phases"]:
        row |= dict.fromkeys(("device_write_bytes", "device_read_bytes", "disk_bytes", "cpu_s", "wall_s"))
    made = report_on(grid, tmp_path)
    told = made.findings["Write, read and space amplification"]
    assert "Not told: written to the device; read from the device, cold; space, timers pending" in told
    assert not metrics_of(made, "metric") & {"rate", "device_write_per_user_byte", "cpu_us_per_message"}
    assert "wchar_per_user_byte" in metrics_of(made, "metric")


def test_what_only_one_side_has_is_not_compared_and_a_shard_that_lacks_leaves_no_figure(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("wheel", ("schedule",))
    grid.run("null", ("schedule", "mixed"))
    grid.run("lmdb", ("pop_one", "pop_many"), shards=2)
    grid.rows["phases"].pop()
    made = report_on(grid, tmp_path)
    assert "null" not in (made.page.parent / "amplification.csv").read_text()
    assert metrics_of(made, "phase") == {"schedule", "mixed", "pop_one"}


def test_the_same_engine_under_another_name_stands_in_the_claims_alone(tmp_path: Path) -> None:
    grid = Grid()
    for variant in ("wheel", "wheel-again", "lmdb"):
        for backlog in (10_000, 100_000):
            for repeat in range(LEAST_REPEATS):
                grid.run(variant, SWEEP, repeat, backlog=backlog)
    made = report_on(grid, tmp_path)
    assert "wheel-again" not in "".join([*made.findings.values(), *(file.read_text() for file in made.page.parent.glob("*.csv"))])
    page = (made.page.parent / "report.md").read_text()
    assert re.search(r"under two names, on \d\d figures, of which some are of one measurement: alike on", page)
    assert "wheel-again" in metrics_of(made, "variant")


def test_an_open_loop_too_slow_for_a_batch_of_its_own_is_left_out(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("wheel", ("mixed", "open_80"))
    grid.rows["phases"][-1] |= {"messages": 0, "offered_per_s": 0.0}
    assert report_on(grid, tmp_path).loops == []


def test_an_engine_stands_beside_what_is_below_it(tmp_path: Path) -> None:
    grid = Grid()
    for variant in ("wheel", "lmdb", "below"):
        grid.run(variant, ("schedule", "send_lists"))
    (table,) = report_on(grid, tmp_path).tables
    assert table.header == ("variant", "schedule", "by lists", "below", "share")
    assert table.rows == [("wheel", "256 k/s", "256 k/s", "511 k/s", "50%"), ("lmdb", "67.8 k/s", "67.8 k/s", NOT_TOLD, NOT_TOLD)]


# ---------------------------------------------------------------- results that are none


def _damage(what: str, directory: Path) -> None:
    """Leave results that are wrong in one way."""
    phases, grid = directory / "results" / "phases.parquet", Grid()
    if what != "no run":
        grid.run("wheel", ("schedule",))
    if what != "no directory":
        grid.write(directory, ("runs",) if what == "no phases" else tuple(TABLES))
    if what == "no Parquet":
        phases.write_bytes(b"no parquet")
    if what == "no column":
        pq.write_table(pq.read_table(phases).drop_columns(["messages"]), phases)
    if what == "another type":
        pq.write_table(pq.read_table(phases).set_column(0, "run_id", pa.array([[1]])), phases)
    if what == "no environment":
        (directory / "environment.json").write_text("[]")


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("no directory", StorePathError, r"holds no results of a benchmark.*rmqstore bench run"),
        ("no run", StorePathError, r"names no run"),
        ("no phases", StorePathError, r"holds no table phases"),
        ("no Parquet", TransferError, r"phases\.parquet is not the table phases of this version .*run the benchmark again"),
        ("no column", TransferError, r"phases\.parquet is not the table .*messages"),
        ("another type", TransferError, r"phases\.parquet is not the table"),
        ("no environment", TransferError, r"environment\.json must hold a JSON object"),
    ],
)
def test_what_is_no_result_is_refused_before_anything_is_written(tmp_path: Path, what: str, error: type[RmqstoreError], words: str) -> None:
    _damage(what, tmp_path / "run")
    with pytest.raises(error, match=words):
        make(tmp_path / "run", tmp_path / "report")
    assert not (tmp_path / "report").exists()


# ---------------------------------------------------------------- the command


def test_the_command_tells_findings_and_replaces_what_an_earlier_report_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded, rolled, report = Grid(), Grid(), tmp_path / "report"
    loaded.run("wheel", ("open_80",))
    rolled.run("wheel", ("roll",), workload="reminder")
    assert run_command("bench", "report", loaded.write(tmp_path / "one"), "--out", report) == 0
    shown = capsys.readouterr()
    assert "Latency over load: lateness p99 (80 %): " in shown.out
    assert "claim, sorting on write: not measured in this run" in shown.out
    assert shown.out.splitlines()[-1] == f"report: {report / 'report.html'}"
    assert "left out: Rate over backlog; it needs the phases schedule or hand_over at two backlogs" in shown.err
    assert (report / "latency-over-load.png").exists()
    assert run_command("bench", "report", rolled.write(tmp_path / "other"), "--out", report) == 0
    assert not list(report.glob("latency-over-load.*"))


def test_the_command_says_what_to_run_where_there_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("bench", "report", tmp_path / "nothing", "--out", tmp_path / "report") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "`rmqstore bench run SPEC.toml` makes them" in shown.err
