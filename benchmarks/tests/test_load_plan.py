"""The plan of a load test, its failures, and the ledger's files: what every attempt must find alike."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from rmqstore_benchmarks.load import ledger
from rmqstore_benchmarks.load.clients import InjectedFailureError, Injector
from rmqstore_benchmarks.load.ledger import Event, LedgerFile
from rmqstore_benchmarks.load.plan import NO_TIME, Failure, Fate, Plan, chunk_for, ids_in, note_once, noted, of_round

PLAN = Plan("memory", "nowhere", 10_007, 3, seed=5, chunk=100)


@pytest.mark.parametrize(("messages", "shards", "chunk"), [(10_007, 3, 100), (3, 3, 1), (1000, 1, 1000), (17, 4, 2)])
def test_every_id_is_sent_once_by_its_own_shard(messages: int, shards: int, chunk: int) -> None:
    plan, sent = Plan("memory", "nowhere", messages, shards, chunk=chunk), []
    for shard in range(shards):
        for number in (each for round_ in range(plan.rounds + 1) for each in plan.chunks_of_round(shard, round_)):
            ids = plan.ids(shard, number)
            assert (ids % shards == shard).all()
            assert (plan.chunk_of(ids) == number).all()
            sent += ids.tolist()
    assert sorted(sent) == list(range(messages))


def test_a_message_does_not_depend_on_the_chunk_it_is_made_in() -> None:
    ids = np.random.default_rng(1).permutation(PLAN.messages)
    whole = PLAN.batch(ids)
    assert whole.slice(250, 50).equals(PLAN.batch(ids[250:300]))
    assert not whole.equals(msgspec.structs.replace(PLAN, seed=6).batch(ids))
    assert (ids_in(whole.column("message_id")) == ids).all()


def test_a_message_is_damaged_by_another_body_a_cut_one_none_and_another_time() -> None:
    ids = np.arange(100)
    sent = PLAN.batch(ids)
    bodies, times = sent.column("body").to_pylist(), sent.column("deliver_at_ms").to_pylist()
    assert not PLAN.is_damaged(ids[10:30], sent.column("body").slice(10, 20), sent.column("deliver_at_ms").slice(10, 20)).any()
    bodies[3], bodies[4], bodies[5], times[6], bodies[7] = bodies[4], bodies[4][:-8], None, 1, b""
    found = PLAN.is_damaged(ids, pa.array(bodies, pa.binary()), pa.array(times, pa.int64()))
    assert np.flatnonzero(found).tolist() == [3, 4, 5, 6, 7]


def test_every_fate_has_messages_and_no_message_has_two() -> None:
    ids = np.arange(PLAN.messages)
    masks = {fate: PLAN.has(ids, fate) for fate in Fate}
    is_now = PLAN.due_ms(ids) == NO_TIME
    assert all(0 < mask.mean() < 0.4 for mask in (*masks.values(), is_now))
    by_handle, by_key = masks[Fate.CANCELLED_BY_HANDLE], masks[Fate.CANCELLED_BY_KEY]
    for one, other in ((by_handle, by_key), (masks[Fate.POISON], masks[Fate.HELD]), (by_handle, is_now), (by_key, is_now)):
        assert not (one & other).any()


def test_chunks_leave_every_round_some_work() -> None:
    assert [chunk_for(*each) for each in ((4, 4), (20_000, 4), (1_000_000, 4), (10**9, 64))] == [1, 208, 1000, 1000]


# ---------------------------------------------------------------- failures


def test_failures_have_their_rounds_also_when_there_are_few() -> None:
    assert [{failure.value for failure in of_round(tuple(Failure), round_, 3)} - {"consumer", "owner"} for round_ in range(4)] == [
        {"task"},
        {"worker", "twin"},
        {"task", "executor"},
        {"worker"},
    ]
    for rounds in (1, 2, 5):
        assert {failure for round_ in range(rounds + 1) for failure in of_round(tuple(Failure), round_, rounds)} == set(Failure)
    assert of_round((), 0, 3) == ()
    assert of_round((Failure.CONSUMER, Failure.OWNER), 3, 3) == (Failure.CONSUMER, Failure.OWNER)


def test_a_task_fails_once_whatever_attempt_it_is(tmp_path: Path) -> None:
    def calls(shard: int) -> int:
        injector = Injector(tmp_path, (Failure.TASK,), 0, shard, 20, seed=1)
        for number in range(50):
            try:
                with injector.around("op"):
                    pass
            except InjectedFailureError:
                return number
        return -1

    first, again, other = (calls(shard) for shard in (0, 0, 1))
    assert first > 0 < other
    assert again == -1
    assert [noted(tmp_path, failure) for failure in (Failure.TASK, Failure.WORKER)] == [2, 0]
    assert not note_once(tmp_path, Failure.TASK, 0, 0)


# ---------------------------------------------------------------- the ledger's files


def tell(directory: Path, *rows: tuple[Event, list[int]], close: bool = True) -> None:
    file = LedgerFile(directory, 7)
    for number, (event, ids) in enumerate(rows):
        file.tell(event, np.array(ids), file.moment(1000 + number), 1001 + number)
    if close:
        file.say(Event.CLOSED, 2000)
    file.close()


def table(directory: Path, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in columns) for batch in ledger.table_of(directory) for row in batch.to_pylist()]


def test_the_ledger_gives_back_what_was_told_in_the_order_of_the_attempts(tmp_path: Path) -> None:
    tell(tmp_path, (Event.SENT, [1, 2]), close=False)
    tell(tmp_path, (Event.ACKED, [2]))
    assert table(tmp_path, "file", "event", "id") == [(0, "sent", 1), (0, "sent", 2), (1, "acked", 2), (1, "closed", -1)]
    moments = table(tmp_path, "began")
    assert moments == sorted(moments)
    assert len(set(moments)) == 3, "moments of two attempts have numbers of their own"
    assert ledger.last_ms(tmp_path) == 2000


@pytest.mark.parametrize("missing", [1, 30, 200])
def test_what_a_dying_process_did_not_finish_is_left_out(tmp_path: Path, missing: int) -> None:
    tell(tmp_path, (Event.SENT, [1, 2]), (Event.ACKED, [2]), close=False)
    (file,) = ledger.files_of(tmp_path)
    file.write_bytes(file.read_bytes()[:-missing])
    assert table(tmp_path, "event", "id") == [("sent", 1), ("sent", 2)]
    assert ledger.last_ms(tmp_path) == 1001


def test_an_event_is_on_disk_before_its_call(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path, 7)
    file.intend(Event.ACKING, np.array([4]), 10, np.array([2]))
    assert table(tmp_path, "event", "id", "attempt") == [("acking", 4, 2)]
    file.close()
