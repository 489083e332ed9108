"""Staged files: what is read is what was written, or an error that names the file."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import rmqstore
from rmqstore.batch import MessageBatch
from rmqstore.schemas import IN_SCHEMA
from rmqstore.spark.staging import StagedFile, StagedWriter, read_batches
from tests.spark.datasets import rows

COUNTS = ((0, 3), (1, 4), (0, 1), (2, 5))


def batch_of(first: int, count: int) -> pa.RecordBatch:
    return MessageBatch.from_arrow(rows(first, count)).columns


def written(path: Path) -> StagedFile:
    with pa.OSFile(str(path), "wb") as sink:
        writer = StagedWriter(sink, shards=3)
        for number, (shard, count) in enumerate(COUNTS):
            # A slice, of which only the rows themselves may be written.
            writer.write(shard, batch_of(0, 100).slice(number * 10, count))
        return writer.finish(path.name)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StagedFile]:
    path = tmp_path_factory.mktemp("staged") / "00000-a.arrow"
    return path, written(path)


def test_each_shard_gets_its_batches_back(file: tuple[Path, StagedFile]) -> None:
    path, staged = file
    for shard in range(4):
        expected = [(number, batch_of(0, 100).slice(number * 10, count)) for number, (own, count) in enumerate(COUNTS) if own == shard]
        assert list(read_batches(path, staged, shard)) == expected
    assert [(batch.shard, batch.rows) for batch in staged.batches] == list(COUNTS)
    assert staged.rows == sum(count for _, count in COUNTS)
    assert path.stat().st_size == staged.size_bytes < 10_000


def test_other_readers_of_arrow_can_look_into_it(file: tuple[Path, StagedFile]) -> None:
    with pa.ipc.open_stream(str(file[0])) as reader:
        assert reader.schema == IN_SCHEMA
        assert [len(batch) for batch in reader] == [count for _, count in COUNTS]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_a_byte_that_is_another_one_is_noticed(file: tuple[Path, StagedFile], tmp_path: Path, data: st.DataObject) -> None:
    path, staged = file
    content = bytearray(path.read_bytes())
    number = data.draw(st.integers(0, len(COUNTS) - 1))
    shard, begin = staged.batches[number].shard, staged.offset + sum(batch.size_bytes for batch in staged.batches[:number])
    at = begin + data.draw(st.integers(0, staged.batches[number].size_bytes - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    bad = tmp_path / path.name
    bad.write_bytes(content)
    with pytest.raises(rmqstore.CorruptStoreError, match=f"batch {number} of the staged file {bad}") as caught:
        list(read_batches(bad, staged, shard))
    assert (caught.value.file, caught.value.offset) == (str(bad), begin)
    for other in {0, 1, 2} - {shard}:
        assert len(list(read_batches(bad, staged, other))) == sum(own == other for own, _ in COUNTS)


@pytest.mark.parametrize(("left", "more"), [(0, b""), (1, b""), (100, b""), (3000, b""), (None, b"\x00"), (None, b"x" * 4096)])
def test_a_file_that_is_cut_off_or_longer_is_named(file: tuple[Path, StagedFile], tmp_path: Path, left: int | None, more: bytes) -> None:
    path, staged = file
    bad = tmp_path / path.name
    bad.write_bytes(path.read_bytes()[:left] + more)
    with pytest.raises(rmqstore.CorruptStoreError, match=r"the staged file .*00000-a\.arrow has .* as it was written"):
        list(read_batches(bad, staged, 2))


def test_a_missing_file_is_named_to_those_who_have_rows_in_it(file: tuple[Path, StagedFile], tmp_path: Path) -> None:
    _, staged = file
    with pytest.raises(rmqstore.CorruptStoreError, match=r"gone\.arrow"):
        list(read_batches(tmp_path / "gone.arrow", staged, 1))
    assert list(read_batches(tmp_path / "gone.arrow", staged, 3)) == []


def test_a_batch_of_another_number_of_rows_than_the_record_says_is_refused(file: tuple[Path, StagedFile]) -> None:
    path, staged = file
    batches = [*staged.batches]
    batches[1] = msgspec.structs.replace(batches[1], rows=5)
    with pytest.raises(rmqstore.CorruptStoreError, match="batch 1 of the staged file"):
        list(read_batches(path, msgspec.structs.replace(staged, batches=batches), 1))


def test_what_was_read_stays_as_it_was_checked(file: tuple[Path, StagedFile], tmp_path: Path) -> None:
    path, staged = file
    mine = tmp_path / path.name
    mine.write_bytes(path.read_bytes())
    _, batch = next(read_batches(mine, staged, 1))
    mine.write_bytes(bytes(staged.size_bytes))
    assert batch == batch_of(0, 100).slice(10, 4)
