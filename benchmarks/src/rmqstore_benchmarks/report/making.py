"""Making a report from a directory of results: read, draw, judge, write."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from rmqstore.errors import StorePathError
from rmqstore_benchmarks.report.aggregates import cell_phases, summary
from rmqstore_benchmarks.report.amplification import AMPLIFICATION
from rmqstore_benchmarks.report.as_html import to_html
from rmqstore_benchmarks.report.as_markdown import to_markdown
from rmqstore_benchmarks.report.balance import BALANCE
from rmqstore_benchmarks.report.claims import Verdict
from rmqstore_benchmarks.report.contents import Contents, Shown, outcomes
from rmqstore_benchmarks.report.drawing import style
from rmqstore_benchmarks.report.headline import headlines
from rmqstore_benchmarks.report.lateness import LATENESS
from rmqstore_benchmarks.report.looks import looks_of
from rmqstore_benchmarks.report.operations import OPERATIONS_OVER_LOAD
from rmqstore_benchmarks.report.overhead import OVERHEAD
from rmqstore_benchmarks.report.percentiles import latencies
from rmqstore_benchmarks.report.plot import Measured
from rmqstore_benchmarks.report.reading import read
from rmqstore_benchmarks.report.rocksdb_claims import ROCKSDB_CLAIMS
from rmqstore_benchmarks.report.rolling import ROLLING
from rmqstore_benchmarks.report.sweeps import BACKLOG, BODY, RECOVERY, SHARDS
from rmqstore_benchmarks.report.timeline import TIMELINE
from rmqstore_benchmarks.report.wheel_claims import WHEEL_CLAIMS

PLOTS: Final = (
    BALANCE,
    BACKLOG,
    BODY,
    LATENESS,
    OPERATIONS_OVER_LOAD,
    AMPLIFICATION,
    ROLLING,
    RECOVERY,
    SHARDS,
    TIMELINE,
    OVERHEAD,
)
"""In the order of the report."""

ALL_CLAIMS: Final = (*ROCKSDB_CLAIMS, *WHEEL_CLAIMS)
DPI: Final = 200


class Made(NamedTuple):
    """What was written.

    Attributes:
        outcomes: how the runs ended, in a line.
        findings: by title of a figure.
        verdicts: by name of a claim.
        left_out: titles of the figures that the run has no data for, with what they need.
    """

    page: Path
    outcomes: str
    findings: dict[str, str]
    verdicts: dict[str, Verdict]
    left_out: dict[str, str]


def make(directory: Path, out: Path, *, dpi: int = DPI) -> Made:
    """Write ``report.html``, ``report.md``, ``summary.parquet``, and for each figure ``NAME.png`` and ``NAME.csv`` into ``out``.

    Files of these names are replaced, and a figure of an earlier report that has no data now is removed. Everything is read, drawn and
    judged before the first file is written.

    Raises:
        StorePathError: there are no results in ``directory``, or ``out`` is a file.
        TransferError: the results are not what the harness writes.
    """
    if out.exists() and not out.is_dir():
        raise StorePathError(f"{out} is a file; name a directory for the report")
    report, table = contents_of(directory, dpi)
    out.mkdir(parents=True, exist_ok=True)
    for shown in report.figures:
        (out / f"{shown.plot.name}.png").write_bytes(shown.png)
        pa_csv.write_csv(shown.table, out / f"{shown.plot.name}.csv")
    for plot in report.left_out:
        for kind in ("png", "csv"):
            (out / f"{plot.name}.{kind}").unlink(missing_ok=True)
    pq.write_table(table, out / "summary.parquet")
    (out / "report.md").write_text(to_markdown(report), encoding="utf-8")
    (out / "report.html").write_text(to_html(report), encoding="utf-8")
    return Made(
        out / "report.html",
        outcomes(report.results),
        {shown.plot.title: shown.finding for shown in report.figures},
        {claim.name: judgement.verdict for claim, judgement in report.claims},
        {plot.title: plot.needs for plot in report.left_out},
    )


def contents_of(directory: Path, dpi: int = DPI) -> tuple[Contents, pa.Table]:
    """Return all that stands in the report on a directory, and its summary table."""
    results = read(directory)
    phases = cell_phases(results)
    measured = Measured(results, phases, latencies(results), looks_of(run.cell for run in results.good))
    figures, left_out = [], []
    for plot in PLOTS:
        table = plot.data(measured)
        if not len(table):
            left_out.append(plot)
            continue
        drawn = plot.draw(table, measured.looks)
        picture = io.BytesIO()
        with style():
            drawn.figure.savefig(picture, format="png", dpi=dpi, metadata={"Software": None})
        figures.append(Shown(plot, table, drawn.finding, picture.getvalue()))
    judged = [(claim, claim.judge(phases)) for claim in ALL_CLAIMS]
    return Contents(results, headlines(measured), figures, left_out, judged), summary(phases)
