"""A specification is checked as a whole: every mistake is named with its place before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqstore.errors import ConfigError, IllegalArgumentError, RmqstoreError
from rmqstore_benchmarks.grid import harness
from rmqstore_benchmarks.grid.spec import Spec, parse_spec, read_spec

SPECS = Path(__file__).parents[1] / "specs"
NULL = {"name": "null", "engine": "null"}
LMDB = {"name": "lmdb", "engine": "lmdb"}
ROCKSDB = {"name": "apart", "engine": "rocksdb", "settings": {"rocksdb.values": "separated"}}
GRID = {"variants": ["lmdb"], "workloads": ["order-timeout"], "bodies": [64], "backlogs": [1000], "phases": ["schedule"]}


def document(*grids: dict[str, Any], **given: Any) -> dict[str, Any]:
    return {"variants": [NULL, LMDB, ROCKSDB], "grid": list(grids) or [GRID]} | given


@pytest.mark.parametrize("name", ["small", "full", "speed", "threads", "backlog"])
def test_the_specifications_that_ship_are_right(name: str) -> None:
    spec = read_spec(SPECS / f"{name}.toml")
    assert {"wheel", "rocksdb", "lmdb"} <= {cell.variant.engine for cell in spec.cells}
    assert len({cell.cell_id for cell in spec.cells}) == len(spec.cells)


def test_a_grid_is_the_product_of_its_lists() -> None:
    grid = GRID | {"variants": ["null", "apart"], "bodies": [64, 256], "backlogs": [10, 20, 30], "shards": [1, 2], "repeats": 2}
    spec = parse_spec(document(grid, seed=7, seconds=1))
    assert len(spec.cells) == 2 * 2 * 3 * 2
    assert spec.runs == 48
    cell = spec.cells[-1]
    assert cell.cell_id == "apart.order-timeout.256.30.power_loss.2"
    assert (cell.flush, cell.seconds, cell.variant.settings) == ("sync", 1.0, {"rocksdb.values": "separated"})
    runs = harness.runs_of(spec)
    assert [run.repeat for run in runs] == [0] * 24 + [1] * 24
    first, second = ([run.cell.cell_id for run in part] for part in (runs[:24], runs[24:]))
    assert first != second, "each round has an order of its own"
    assert sorted(first) == sorted(second)
    assert {run.seed for run in runs} == {7, 8}


def test_a_cell_of_two_tables_is_measured_once() -> None:
    one = GRID | {"phases": ["schedule"], "repeats": 2}
    other = GRID | {"phases": ["open_50", "mixed"], "repeats": 3, "seconds": 9}
    (cell,) = parse_spec(document(one, other)).cells
    assert cell.phases == ("fill", "schedule", "warm_up", "mixed", "open_50"), "mixed comes behind a warm-up"
    assert (cell.repeats, cell.seconds) == (3, 9.0)


def test_a_variant_may_have_any_setting_of_a_store() -> None:
    wide = {"name": "wide", "engine": "lmdb", "settings": {"default_queues": 8}}
    (cell,) = parse_spec(document(GRID | {"variants": ["wide"]}, variants=[wide])).cells
    assert cell.variant.settings == {"default_queues": 8}


def test_durability_chooses_the_cheapest_flush_that_the_engine_declares_it_for() -> None:
    grid = GRID | {"variants": ["lmdb", "apart"], "durabilities": ["power_loss", "process_crash"]}
    found = {(cell.variant.name, cell.durability): cell.flush for cell in parse_spec(document(grid)).cells}
    assert found == {
        ("lmdb", "power_loss"): "sync",
        ("lmdb", "process_crash"): "sync",  # under async it declares nothing
        ("apart", "power_loss"): "sync",
        ("apart", "process_crash"): "async",
    }


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (document(sede=1), r"unknown field `sede`; did you mean 'seed'"),
        (document(GRID | {"body": [1]}), r"unknown field `body` - at `\$\.grid\[0\]`; did you mean 'bodies'"),
        (document(GRID | {"bodies": [4]}), r"`int` >= 8 - at `\$\.grid\[0\]\.bodies\[0\]`"),
        (document(GRID | {"bodies": []}), r"`array` of length >= 1 - at `\$\.grid\[0\]\.bodies`"),
        (document(GRID, GRID | {"backlogs": [0]}), r"`int` >= 1 - at `\$\.grid\[1\]\.backlogs"),
        (document(GRID | {"backlogs": [True]}), r"`int`, got `bool` - at `\$\.grid\[0\]\.backlogs"),
        (document(GRID | {"workloads": ["order-timeot"]}), r"'order-timeot'; did you mean 'order-timeout'"),
        (document(GRID | {"variants": ["lmbd"]}), r"'lmbd' is unknown; did you mean 'lmdb'"),
        (document(GRID | {"durabilities": ["none"]}), r"durabilities: 'none' is unknown"),
        (document(variants=[{"name": "x", "engine": "raw-lmdb", "settings": {"a": 1}}]), r"'raw-lmdb' has no settings"),
        (document(GRID | {"phases": ["drain"]}), r"phases: 'drain' is unknown"),
        (document(GRID | {"shards": [3]}), r"1000 cannot be divided among 3 shards"),
        (document(GRID | {"seconds": 0}), r"`float` > 0(\.0)? - at `\$\.grid\[0\]\.seconds"),
        (document(repeats=0), r"`int` >= 1 - at `\$\.repeats"),
        (
            document({"variants": ["lmdb"], "workloads": ["order-timeout"], "bodies": [64]}),
            r"missing required field `backlogs` - at `\$\.grid\[0\]`",
        ),
        (document(variants=[LMDB, LMDB]), r"number 2: the name 'lmdb' is taken"),
        (document(variants=[{"name": "a b", "engine": "lmdb"}]), r"matching regex .* - at `\$\.variants\[0\]\.name`"),
        (document(variants=[{"name": "x", "engine": "rocksbd"}]), r"no engine is called 'rocksbd'; did you mean 'rocksdb'"),
        (
            document(variants=[ROCKSDB | {"settings": {"rocksdb.value": "inline"}}]),
            r"no setting 'rocksdb.value'; did you mean 'rocksdb.values'",
        ),
        (document(variants=[ROCKSDB | {"settings": {"rocksdb.values": "outside"}}]), r"rocksdb.values"),
        (document(variants=[NULL | {"settings": {"a": 1}}]), r"'null' has no settings"),
        (
            document(GRID | {"variants": ["m"]}, variants=[{"name": "m", "engine": "memory"}]),
            r"'memory' declares power_loss under no flush",
        ),
        ({"variants": [LMDB]}, r"missing required field `grid`"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(RmqstoreError, match=told):
        parse_spec(wrong)


def test_a_file_that_is_no_specification_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_spec(tmp_path / "missing.toml")
    file = tmp_path / "spec.toml"
    file.write_text("seed = ")
    with pytest.raises(ConfigError, match=r"spec\.toml is no TOML"):
        read_spec(file)
    file.write_text("seed = -1\nvariants = []")
    with pytest.raises(ConfigError, match=r"spec\.toml: .* - at `\$\.seed`"):
        read_spec(file)


def test_a_cell_that_fills_the_disk_is_refused_by_its_name(tmp_path: Path) -> None:
    spec = parse_spec(document(GRID | {"backlogs": [10, 1_000_000_000], "bodies": [65_536]}))
    with pytest.raises(IllegalArgumentError, match=r"lmdb\.order-timeout\.65536\.1000000000\.power_loss\.1 may take"):
        harness.require_space(spec, tmp_path)


def test_a_directory_belongs_to_one_specification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "why_not", lambda: None)

    def begin(spec: Spec, out: Path) -> None:
        monkeypatch.setattr(harness, "session", lambda *_, **__: pytest.fail("Spark was started"))
        harness.run_grid(spec, out, tmp_path)

    out = tmp_path / "out"
    with pytest.raises(pytest.fail.Exception):
        begin(parse_spec(document()), out)
    with pytest.raises(ConfigError, match="was begun with another specification"):
        begin(parse_spec(document(seed=2)), out)
    with pytest.raises(pytest.fail.Exception):
        begin(parse_spec(document()), out)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        begin(parse_spec(document()), tmp_path / "other")
