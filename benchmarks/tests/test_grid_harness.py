"""The grid's driver and its command: what is listed and refused, how it ends, and that a grid goes on where it was ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.tests.conftest import run_command
from rmqstore.spark.sessions import why_not
from rmqstore_benchmarks.grid import harness
from rmqstore_benchmarks.grid.harness import Told
from rmqstore_benchmarks.grid.named import named_workloads
from rmqstore_benchmarks.grid.spec import parse_spec
from rmqstore_benchmarks.grid.stores import Run
from rmqstore_benchmarks.grid.tables import TABLES

SPECS = Path(__file__).parents[1] / "specs"


def test_it_lists_every_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("bench", "workloads") == 0
    listed = capsys.readouterr().out
    for workload in named_workloads().values():
        assert workload.name in listed


def test_a_wrong_specification_is_one_paragraph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.toml").write_text("sede = 1")
    assert run_command("bench", "run", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "out")) == 1
    assert "unknown field `sede`; did you mean 'seed'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_stores_need_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["run", str(SPECS / "small.toml"), "--out", str(tmp_path / "out"), "--stores", str(tmp_path / "missing")]
    assert run_command("bench", *given) == 1
    assert "--stores" in capsys.readouterr().err


@pytest.mark.parametrize(("outcome", "code"), [("ok", 0), ("refused", 3), ("failed", 3)])
def test_the_exit_code_says_whether_all_was_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: str, code: int
) -> None:
    def run_grid(spec: Any, out: Path, stores: Path, *, tell: Any, **_: Any) -> dict[str, int]:
        tell(Told("a.b", 0, spec.runs))
        tell(Told("a.b", 1, spec.runs, outcome, "why"))
        return {outcome: 1}

    monkeypatch.setattr(harness, "run_grid", run_grid)
    assert run_command("bench", "run", str(SPECS / "small.toml"), "--out", str(tmp_path / "out"), "--stores", str(tmp_path)) == code
    shown = capsys.readouterr()
    assert f"a.b {outcome}: why" in shown.err
    assert f"1 run: 1 {outcome}" in shown.out


# ---------------------------------------------------------------- by Spark

SPEC = {
    "seconds": 0.2,
    "variants": [{"name": "null", "engine": "null"}, {"name": "lmdb", "engine": "lmdb"}],
    "grid": [
        {"variants": ["null", "lmdb"], "workloads": ["order-timeout"], "bodies": [64], "backlogs": [500], "phases": ["schedule"]},
        {
            "variants": ["lmdb"],
            "workloads": ["pop-heavy"],
            "bodies": [64],
            "backlogs": [500],
            "shards": [2],
            "phases": ["hand_over", "pop_ack"],
        },
    ],
}


@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.skipif(why_not() is not None, reason=f"Spark cannot run: {why_not()}")
def test_a_grid_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    spec = parse_spec(SPEC)
    out = tmp_path / "out"
    harness._claim(spec, out)
    lmdb, pair, null = sorted(harness.runs_of(spec), key=lambda run: run.run_id)
    keep(out, null, "ok")
    keep(out, lmdb, "failed")
    told: list[Told] = []
    outcomes = harness.run_grid(spec, out, tmp_path, command="rmqstore bench run …", tell=told.append)
    assert outcomes == {"ok": 3}
    assert sorted(each.run_id for each in told if each.outcome) == [lmdb.run_id, pair.run_id]
    found = {name: pq.read_table(out / "results" / f"{name}.parquet") for name in (*TABLES, "summary", "latencies")}
    for name, schema in TABLES.items():
        assert found[name].schema.names == schema.names
        assert [field.type for field in found[name].schema] == [field.type for field in schema]
    reasons = dict(zip(*(found["runs"].column(name).to_pylist() for name in ("run_id", "reason")), strict=True))
    assert reasons[null.run_id] == "kept"
    shards = {row["shard"] for row in found["phases"].to_pylist() if row["run_id"] == pair.run_id}
    assert shards == {0, 1}
    fills = [row for row in found["phases"].to_pylist() if row["run_id"] == pair.run_id and row["phase"] == "fill"]
    assert [row["messages"] for row in fills] == [250, 250]
    (rate,) = [
        row for row in found["summary"].to_pylist() if (row["cell_id"], row["phase"], row["metric"]) == (pair.cell.cell_id, "fill", "rate")
    ]
    assert rate["median"] == pytest.approx(sum(row["messages"] / row["wall_s"] for row in fills))
    (latency,) = [row for row in found["latencies"].to_pylist() if row["cell_id"] == lmdb.cell.cell_id and row["phase"] == "fill"]
    assert latency["total"] == 1
    assert latency["share"] == 1, "one call has none that took longer"
    assert (out / "environment.json").exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out"], "the stores are gone"


def keep(out: Path, run: Run, outcome: str) -> None:
    """Leave a run as an earlier attempt did."""
    harness._keep(out, run, pa.Table.from_pylist([harness.run_row(run, outcome, "kept", 0, 0.0)], TABLES["runs"]), ())
