"""The report on a run of the grid: every figure, finding and claim, and what it does with results that lack something."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.tests.conftest import run_command
from benchmarks.tests.grid_results import DESIGNS, STEADY, Grid, Point
from rmqstore.errors import RmqstoreError, StorePathError, TransferError
from rmqstore_benchmarks.grid.tables import TABLES

pytest.importorskip("matplotlib", reason="the report needs rmqstore-benchmarks[report]")

from rmqstore_benchmarks.report.claims import ALL_CLAIMS, Verdict
from rmqstore_benchmarks.report.figures import PLOTS
from rmqstore_benchmarks.report.making import Report, make

DPI = 40


def everything() -> Grid:
    """Return results that every figure has its data in, as few as will do."""
    grid = Grid()
    cold = tuple(phase for phase in STEADY if phase not in ("open_50", "open_95"))
    sweep = ("schedule", "hand_over", "pop_ack", "recover")
    for variant in ("wheel", "wheel-copy", "rocksdb", "rocksdb-separated", "lmdb"):
        for repeat in range(2):
            grid.run(variant, Point(), repeat, STEADY if repeat == 0 else cold, seconds=4)
        grid.run(variant, Point(backlog=1_000_000), 0, sweep, seconds=1)
        grid.run(variant, Point(body_bytes=4096), 0, sweep, seconds=1)
        grid.run(variant, Point(body_bytes=4096, backlog=1_000_000), 0, sweep, seconds=1)
        grid.run(variant, Point(shards=2), 0, ("schedule", "mixed"), seconds=1)
        grid.run(variant, Point("reminder"), 0, ("fill", "roll"), seconds=1)
    grid.run("null", Point(), 0, ("schedule", "hand_over"), seconds=1)
    return grid


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    directory = everything().write(tmp_path_factory.mktemp("grid"))
    return make(directory, directory / "report", dpi=DPI)


class References(HTMLParser):
    """Gathers what a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]


def test_every_figure_has_picture_data_and_a_finding_with_a_figure_in_it(made: Report) -> None:
    assert not made.left_out
    assert list(made.findings) == [plot.title for plot in PLOTS]
    for plot in PLOTS:
        assert (made.page.parent / f"{plot.name}.png").read_bytes().startswith(b"\x89PNG")
        assert len((made.page.parent / f"{plot.name}.csv").read_text().splitlines()) > 2
        assert re.search(r"\d", made.findings[plot.title]), plot.title
        assert ("null" in made.findings[plot.title]) == (plot.name == "overhead")


def test_the_page_needs_no_other_file(made: Report) -> None:
    page = References()
    page.feed(made.page.read_text())
    assert len(page.found) == len(PLOTS)
    assert all(each.startswith("data:image/png;base64,") for each in page.found)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert page.tags.count("details") == len(PLOTS)
    assert not re.search(r"url\(|@import|https?://", made.page.read_text())


def test_links_of_the_markdown_page_lead_somewhere(made: Report) -> None:
    text = (made.page.parent / "report.md").read_text()
    links = re.findall(r"(?<!\\)\[[^\]]*\]\(([^)]+)\)", text)
    assert len(links) == 2 * len(PLOTS)
    assert all((made.page.parent / link).is_file() for link in links)


def test_the_summary_has_a_row_for_each_figure_of_each_phase_of_each_cell(made: Report) -> None:
    rows = pq.read_table(made.page.parent / "summary.parquet").to_pandas()
    assert not rows.duplicated(["cell_id", "phase", "metric"]).any()
    rates = rows[(rows.phase == "schedule") & (rows.metric == "rate")].set_index("cell_id")
    wheel = rates.loc["wheel/order-timeout/256/100000/power_loss/1"]
    assert wheel.repeats == 2
    assert wheel.low < wheel["median"] < wheel.high
    assert wheel["median"] == pytest.approx((wheel.low + wheel.high) / 2)


def test_every_claim_is_judged(made: Report) -> None:
    assert list(made.verdicts) == [claim.name for claim in ALL_CLAIMS]
    assert Verdict.NOT_MEASURED not in made.verdicts.values()


# ---------------------------------------------------------------- results that lack something


def report_on(grid: Grid, place: Path) -> Report:
    return make(grid.write(place), place / "report", dpi=DPI)


def test_one_phase_of_one_run_makes_a_report_that_says_what_is_missing(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("wheel", Point(), 0, ("fill",), seconds=1)
    grid.environment = None
    made = report_on(grid, tmp_path)
    assert not made.findings
    assert made.left_out == list(PLOTS)
    assert {verdict for name, verdict in made.verdicts.items() if name != "simple flow"} == {Verdict.NOT_MEASURED}
    page = made.page.read_text()
    assert all(plot.needs in page for plot in made.left_out)


def test_a_refused_run_has_no_figure_and_is_listed(tmp_path: Path) -> None:
    grid = Grid()
    fast = DESIGNS["lmdb"]._replace(rate=9e9)
    for backlog in (10_000, 100_000):
        grid.run("wheel", Point(backlog=backlog), 0, ("schedule", "hand_over", "pop_ack"), seconds=1)
        grid.run("lmdb", Point(backlog=backlog), 0, STEADY, "refused", "message 81 came | twice", design=fast, seconds=1)
    made = report_on(grid, tmp_path)
    assert made.outcomes == "4 cells, 4 runs: 2 good, 2 refused"
    assert "lmdb" not in "".join(made.findings.values())
    assert "lmdb" not in "".join(file.read_text() for file in made.page.parent.glob("*.csv"))
    assert not [row for row in pq.read_table(made.page.parent / "summary.parquet").to_pylist() if row["variant"] == "lmdb"]
    assert made.page.read_text().count("message 81 came | twice") == 2
    assert (made.page.parent / "report.md").read_text().count("message 81 came \\| twice") == 2


def test_what_is_not_told_is_left_out_and_never_zero(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("rocksdb", Point(), 0, ("schedule", "hand_over", "pop_ack"), seconds=1)
    for row in grid.rows["phases"]:
        for name in ("device_write_bytes", "device_read_bytes", "disk_bytes", "cpu_s", "wall_s"):
            row[name] = None
    made = report_on(grid, tmp_path)
    assert "Not told: written to the device, read from the device and space." in made.findings["Write, read and space amplification"]
    metrics = set(pq.read_table(made.page.parent / "summary.parquet")["metric"].to_pylist())
    assert not metrics & {"rate", "device_write_per_user_byte", "cpu_us_per_message"}
    assert "wchar_per_user_byte" in metrics


def test_the_null_engine_is_compared_in_the_phases_that_others_went_through(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("wheel", Point(), 0, ("schedule",), seconds=1)
    grid.run("null", Point(), 0, ("schedule", "mixed"), seconds=1)
    made = report_on(grid, tmp_path)
    assert made.findings["What Spark and the generator cost"].startswith("Schedule (a message): from ")
    assert "Mixed" not in (made.page.parent / "overhead.csv").read_text()


def test_a_run_that_lacks_a_shard_has_no_figure_for_that_phase(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("wheel", Point(shards=2), 0, ("schedule", "mixed"), seconds=1)
    grid.rows["phases"].pop()
    made = report_on(grid, tmp_path)
    assert set(pq.read_table(made.page.parent / "summary.parquet")["phase"].to_pylist()) == {"schedule"}


def test_a_figure_without_data_now_is_removed(tmp_path: Path) -> None:
    grid = Grid()
    grid.run("wheel", Point("reminder"), 0, ("roll",), seconds=1)
    first = make(grid.write(tmp_path / "first"), tmp_path / "report", dpi=DPI)
    assert "Write amplification of rolling" in first.findings
    assert (tmp_path / "report" / "rolling.png").exists()
    grid = Grid()
    grid.run("wheel", Point(), 0, ("schedule",), seconds=1)
    make(grid.write(tmp_path / "second"), tmp_path / "report", dpi=DPI)
    assert not list((tmp_path / "report").glob("rolling.*"))


# ---------------------------------------------------------------- results that are none


def small() -> Grid:
    grid = Grid()
    grid.run("wheel", Point(), 0, ("schedule",), seconds=1)
    return grid


def _damage(what: str, directory: Path) -> None:
    """Leave results that are wrong in one way."""
    phases = directory / "results" / "phases.parquet"
    if what != "no directory":
        (Grid() if what == "no run" else small()).write(directory, ("runs",) if what == "no phases" else tuple(TABLES))
    if what == "no Parquet":
        phases.write_bytes(b"no parquet")
    if what == "no column":
        pq.write_table(pq.read_table(phases).drop_columns(["messages"]), phases)
    if what == "another type":
        table = pq.read_table(phases)
        pq.write_table(table.set_column(0, "run_id", pa.array([[1]] * len(table))), phases)
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


def command(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = run_command(*arguments)
    return code, *capsys.readouterr()


def test_the_command_tells_findings_and_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = Grid()
    grid.run("wheel", Point("reminder"), 0, ("roll",), seconds=1)
    code, out, err = command(capsys, "bench", "report", grid.write(tmp_path))
    assert code == 0
    assert "Write amplification of rolling: Written while rolling (by the process)" in out
    assert "claim, sorting on write: not measured in this run" in out
    assert out.splitlines()[-1] == f"report: {tmp_path / 'report' / 'report.html'}"
    assert "left out: Recovery time; it needs the phase recover at two backlogs" in err


def test_the_command_says_what_to_run_where_there_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, "bench", "report", tmp_path / "nothing", "--out", tmp_path / "report")
    assert (code, out) == (1, "")
    assert "`rmqstore bench run SPEC.toml` makes them" in err
    assert not (tmp_path / "report").exists()
