"""What is half done in a data set, and how it is finished or taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore.spark import Dataset, migrating, repair
from rmqstore.transfer import replacing
from rmqstore.transfer.taking import Taking
from tests.spark.datasets import ENGINE, ENGINES, committed, ingested, rows, timers_of

pytestmark = pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")

MOMENTS = [
    (replacing.Replacement, "begin", True),
    (Taking, "run", False),
    (replacing.Replacement, "ready", True),
    (replacing, "exchanged", True),
]


class Killed(BaseException):
    """The end of a process."""


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset.create(tmp_path / "data", shards=2, engine=ENGINE)


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs two durable engines")
@pytest.mark.parametrize(("owner", "name", "is_behind"), MOMENTS, ids=[name for _, name, _ in MOMENTS])
def test_a_migration_that_was_killed_in_a_shard_is_undone_at_once(
    dataset: Dataset, owner: object, name: str, is_behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingested(committed(dataset, "load", rows(0, 30)))
    call = getattr(owner, name)

    def killed(*given: object, **named: object) -> object:
        if is_behind:
            call(*given, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            migrating.migrate_here(dataset, ENGINES[0])
    dataset = Dataset.open(dataset.path)
    assert repair.undo(dataset)
    assert [dataset.engines_of(shard) for shard in dataset.shards] == [{ENGINE}, {ENGINE}]
    assert list(repair.troubles(Dataset.open(dataset.path))) == []
    assert sorted(timers_of(dataset.path)) == list(range(30))
    assert [entry.name for entry in dataset.path.glob("*.migrating*")] == []
