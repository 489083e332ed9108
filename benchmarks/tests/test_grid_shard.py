"""One shard of a run, without Spark: right stores get figures, one that loses or doubles a message gets none."""

from __future__ import annotations

import struct
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import rmqstore
from rmqstore_benchmarks.grid import phases as loops, shard
from rmqstore_benchmarks.grid.calls import Calls
from rmqstore_benchmarks.grid.load import Load, ticks_of
from rmqstore_benchmarks.grid.named import START_MS, workload_named
from rmqstore_benchmarks.grid.shard import Outcome, outcome_of, run_shard
from rmqstore_benchmarks.grid.stores import RAW, Cell, ShardTask, Variant, open_store

SHORT_S = 0.1


def task(place: Path, engine: str = "memory", settings: dict[str, Any] | None = None, **given: Any) -> ShardTask:
    fields: dict[str, Any] = {"workload": "order-timeout", "body_bytes": 64, "backlog": 1500, "flush": "sync", "seconds": SHORT_S}
    fields |= {"phases": ("fill", "schedule", "cancel", "hand_over", "pop_ack", "mixed", "open_80")}
    cell = Cell(variant=Variant(engine, engine, settings or {}), durability="nothing", shards=1, repeats=1, **(fields | given))
    return ShardTask(cell, 0, 1, 0, str(place / "shard"))


def rows(outcome: Outcome, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = outcome.table(table).to_pylist()
    return found


def phases(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Return the row of each phase by its name, of a store that was right."""
    assert (outcome.wrong, outcome.failed) == ("", "")
    return {row["phase"]: row for row in rows(outcome, "phases")}


def test_every_phase_leaves_its_rows_and_the_backlog_has_its_size_when_a_rate_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending: list[int] = []

    def watched(loop: Callable[..., int], calls: Calls, *given: Any) -> int:
        pending.append(calls.pending)
        sent = loop(calls, *given)
        pending.append(calls.pending)
        return sent

    for name in ("mixed", "at_rate"):
        monkeypatch.setattr(loops, name, partial(watched, getattr(loops, name)))
    given = task(tmp_path, seconds=0.3)
    outcome = run_shard(given)
    found = phases(outcome)
    assert tuple(found) == given.cell.phases
    assert found["fill"]["messages"] == 1500
    assert found["fill"]["user_bytes"] == 1500 * (len("orders") + 64 + 10)
    # By Little's law; between two hand-overs, 100 ms, the backlog grows by what is sent meanwhile.
    growth = 0.1 * found["mixed"]["messages"] / found["mixed"]["wall_s"]
    assert pending[::2] == [1500, 1500]
    assert 0.75 * 1500 <= pending[1] <= 1.25 * 1500 + 1.5 * growth
    assert pending[3] >= 0.4 * 1500  # less where the machine stalls: time goes on, and sends are late
    operations = {(row["phase"], row["operation"]) for row in rows(outcome, "histograms")}
    assert {("schedule", "schedule"), ("cancel", "cancel"), ("pop_ack", "ack"), ("open_80", "slip"), ("open_80", "lateness")} <= operations
    scheduled = Counter[str]()
    for row in rows(outcome, "seconds"):
        scheduled[row["phase"]] += row["scheduled"]
    assert (scheduled["fill"], scheduled["mixed"]) == (1500, found["mixed"]["messages"])
    assert scheduled["open_80"] <= 0.85 * found["mixed"]["messages"] / found["mixed"]["wall_s"] * found["open_80"]["wall_s"] + 100
    assert not Path(given.directory).exists(), "the store is gone"


@pytest.mark.parametrize("workload", ["pop-heavy", "order-timeout", "retry-backoff"])
def test_workloads_with_dead_consumers_and_without_cancels_come_out_right(tmp_path: Path, workload: str) -> None:
    wanted = tuple(name for name in workload_named(workload).phases if name in ("fill", "hand_over", "pop_ack", "mixed", "open_95"))
    assert tuple(phases(run_shard(task(tmp_path, workload=workload, phases=wanted)))) == wanted


def test_a_burst_is_late_by_as_long_as_it_takes(tmp_path: Path) -> None:
    outcome = run_shard(task(tmp_path, workload="eight-oclock", backlog=20_000, phases=("fill", "hand_over")))
    assert sum(row["n"] for row in rows(outcome, "histograms") if row["operation"] == "lateness") == 20_000
    assert phases(outcome)["hand_over"]["messages"] == 20_000
    assert sum(row["handed_over"] for row in rows(outcome, "seconds") if row["phase"] == "hand_over") == 20_000


def test_nothing_is_due_while_reminders_roll(tmp_path: Path) -> None:
    found = phases(run_shard(task(tmp_path, workload="reminder", phases=("fill", "roll", "hand_over"))))
    assert found["roll"]["calls"] == 8 * 24
    assert found["hand_over"]["messages"] > 0


def test_timers_go_in_by_lists_and_one_at_a_time_and_messages_come_out_by_one_and_by_many(tmp_path: Path) -> None:
    wanted = ("fill", "schedule", "send_lists", "send_one", "hand_over", "pop_one", "pop_ack", "pop_many")
    found = phases(run_shard(task(tmp_path, workload="eight-oclock", phases=wanted, backlog=20_000, seconds=0.05)))
    assert tuple(found) == wanted
    assert all(0 < row["call_s"] <= row["wall_s"] for row in found.values())
    assert found["send_one"]["messages"] == found["send_one"]["calls"]
    assert found["pop_one"]["messages"] * 2 == found["pop_one"]["calls"]
    assert found["pop_many"]["messages"] > 16 * found["pop_many"]["calls"]


def test_producers_send_one_a_call_side_by_side(tmp_path: Path) -> None:
    found = phases(run_shard(task(tmp_path, phases=("fill", "produce_1", "produce_16", "hand_over", "pop_ack"), backlog=1000)))
    for name in ("produce_1", "produce_16"):
        assert found[name]["messages"] == found[name]["calls"] == 4000


def test_consumers_share_what_is_ready(tmp_path: Path) -> None:
    given = task(tmp_path, settings={"default_queues": 4}, phases=("fill", "consume_1", "consume_8"), backlog=4000)
    found = phases(run_shard(given))
    for name in ("consume_1", "consume_8"):
        assert found[name]["messages"] == 4000
        assert 0.5 < found[name]["first_queue_dry"] <= 1, "one queue was emptied long before another"
        assert 0 <= found[name]["slowest_thread"] <= 1
    assert found["consume_1"]["slowest_thread"] == 1


@pytest.mark.parametrize(
    ("engine", "needs", "expected"),
    [
        ("null", "rmqstore", ["fill", "schedule", "cancel", "mixed", "open_80"]),
        ("raw-wheel", "rmqstore_wheel", ["fill", "schedule", "send_one"]),
        ("raw-rocksdb", "rocksdict", ["fill", "schedule", "send_one"]),
        ("raw-lmdb", "lmdb", ["fill", "schedule", "send_one"]),
    ],
)
def test_what_is_no_engine_does_what_needs_nothing_to_come_back(tmp_path: Path, engine: str, needs: str, expected: list[str]) -> None:
    pytest.importorskip(needs)
    wanted = ("fill", "schedule", "send_one", "cancel", "hand_over", "mixed", "open_80")
    found = phases(run_shard(task(tmp_path, engine=engine, phases=wanted)))
    assert list(found) == expected
    assert found["fill"]["messages"] == 1500
    assert all(row["messages"] > 0 for row in found.values())


def test_a_raw_value_is_as_long_as_what_is_stored(tmp_path: Path) -> None:
    made = Load(workload_named("within-the-hour"), 64, 1).fresh(START_MS, 1)
    with rmqstore.open(tmp_path / "s", engine="memory", clock=rmqstore.ManualClock(START_MS), services=False) as store:
        store.send_batch(made.columns)
        stored = [len(value) for _, value in store.engine.timers._shared.kv.scan(1, b"", None, 10)]  # type: ignore[attr-defined]
    pytest.importorskip("lmdb")
    raw = RAW["raw-lmdb"](tmp_path / "raw")
    entries = raw.prepared(made.columns, START_MS)
    assert [len(value) for _, value in entries] == stored
    assert [struct.unpack(">QQ", key) for key, _ in entries] == [(ticks_of(made.due_ms)[0], 0)]
    raw.close()


class Wrong:
    """A store of which one call, the name of the fault's function, is made by that function; it knows the store and its clock."""

    def __init__(self, fault: Callable[..., Any], store: Any, clock: rmqstore.ManualClock) -> None:
        self._store, self._fault, self._clock = store, fault, clock
        self.is_first = iter([True])

    def __getattr__(self, name: str) -> Any:
        if name == self._fault.__name__.partition("_that_")[0]:
            return partial(self._fault, self)
        return getattr(self._store, name)

    def tick_at(self, shift_ms: int) -> Any:
        true_ms = self._clock.now_ms()
        self._clock.set(true_ms + shift_ms)
        try:
            return self._store.tick()
        finally:
            self._clock.set(true_ms)


def send_batch_that_loses_one(wrong: Any, columns: Any) -> Any:
    receipts = wrong._store.send_batch(columns)
    if next(wrong.is_first, False):
        wrong._store.cancel(receipts[5].handle)
    return receipts


def send_batch_that_cuts(wrong: Any, columns: pa.RecordBatch) -> Any:
    return wrong._store.send_batch(columns.set_column(1, "body", pc.binary_slice(columns.column("body"), 0, 16)))


def send_batch_that_scribbles_between_the_ends(wrong: Any, columns: pa.RecordBatch) -> Any:
    return wrong._store.send_batch(columns.set_column(1, "body", pc.binary_replace_slice(columns.column("body"), 20, 24, b"oops")))


def pop_that_doubles_one(wrong: Any, *given: Any, **named: Any) -> Any:
    messages = wrong._store.pop(*given, **named)
    return [*messages, messages[0]] if messages and next(wrong.is_first, False) else messages


def ack_that_is_refused(wrong: Any, messages: Any) -> Any:
    return [rmqstore.AckOutcome.STALE, *wrong._store.ack(messages)[1:]]


def tick_that_is_early(wrong: Any) -> Any:
    return wrong.tick_at(3_600_000)


def tick_that_lags(wrong: Any) -> Any:
    return wrong.tick_at(-3_600_000)


def tick_that_does_nothing(wrong: Any) -> Any:
    return rmqstore.TickReport()


@pytest.mark.parametrize(
    ("fault", "phases", "told", "workload"),
    [
        # No phase that cancels at random: the lost one could be picked, and then it is gone by right.
        (send_batch_that_loses_one, ("fill", "hand_over", "pop_ack"), "1 lost (ids 5)", "retry-backoff"),
        (pop_that_doubles_one, ("fill", "hand_over", "pop_ack"), "1 doubled", "retry-backoff"),
        (ack_that_is_refused, ("fill", "consume_8"), "acked within their lease and refused", "retry-backoff"),
        (tick_that_is_early, ("fill", "hand_over"), " did not hand over what was due", "order-timeout"),
        (tick_that_lags, ("fill", "hand_over"), " did not hand over what was due", "order-timeout"),
        (tick_that_is_early, ("fill", "mixed"), " early (ids ", "order-timeout"),
        (tick_that_lags, ("fill", "mixed"), " not handed over (ids ", "order-timeout"),
        (tick_that_does_nothing, ("fill", "mixed"), " not handed over (ids ", "order-timeout"),
        (send_batch_that_cuts, ("fill",), "1500 damaged (ids ", "order-timeout"),
        (send_batch_that_cuts, ("fill", "hand_over", "pop_ack"), "1500 damaged (ids ", "eight-oclock"),
        (send_batch_that_scribbles_between_the_ends, ("fill",), "1500 damaged (ids ", "order-timeout"),
    ],
)
def test_a_wrong_store_is_refused(tmp_path: Path, fault: Any, phases: tuple[str, ...], told: str, workload: str) -> None:
    given = task(tmp_path, phases=phases, workload=workload)
    assert told in run_shard(given, lambda each, clock: Wrong(fault, open_store(each, clock), clock)).wrong


@pytest.mark.parametrize(
    ("code", "said", "is_refused"),
    [
        (1, "rmqstore.errors.CorruptStoreError: store/wheel/000001.log is damaged at 4096", True),
        (-6, "terminate called: a bug", True),
        (0, "no answer was left", True),
        (-9, "", False),
        (1, "pyarrow.lib.ArrowMemoryError: malloc of size 67108864 failed", False),
        (1, "OSError: [Errno 12] Cannot allocate memory", False),
    ],
)
def test_a_cold_drain_that_fails_is_refused_but_for_want_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str, is_refused: bool
) -> None:
    monkeypatch.setattr(shard, "limited_group", lambda name, limit: nullcontext())
    monkeypatch.setattr(shard, "_child", lambda *_: subprocess.CompletedProcess([], code, b"", said.encode()))
    outcome = run_shard(task(tmp_path, phases=("fill", "cold_drain")))
    told = f"cold_drain ended with {code} in"
    assert (told in outcome.wrong, any(told in note for note in outcome.notes)) == (is_refused, not is_refused)
    assert said in outcome.wrong + outcome.notes[0] if not is_refused else said in outcome.wrong


def test_a_task_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    outcome = outcome_of(task(tmp_path, settings={"no.such": 1}))
    assert "ConfigError" in outcome.failed
    assert not outcome.parts
    assert not Path(tmp_path, "shard").exists()


@pytest.mark.crash
def test_what_a_killed_owner_was_told_is_there_again_and_comes_out_cold(tmp_path: Path) -> None:
    outcome = run_shard(task(tmp_path, engine="rocksdb", phases=("fill", "recover", "cold_drain"), backlog=500))
    found = phases(outcome)
    assert found["recover"]["messages"] == 20_500
    if "cold_drain was not run" in " ".join(outcome.notes):
        pytest.skip(outcome.notes[-1])
    over, popped = found["cold_hand_over"], found["cold_pop_ack"]
    assert over["messages"] == popped["messages"] == 20_500
    assert over["memory_limit_bytes"] == popped["memory_limit_bytes"] > 0
    assert (over["live_bytes"] > 0, popped["live_bytes"]) == (True, 0)


def test_a_store_is_opened_with_the_settings_of_the_task(tmp_path: Path) -> None:
    (tmp_path / "shard").mkdir()
    given = task(tmp_path, engine="rocksdb", settings={"rocksdb.values": "separated"}, flush="async", body_bytes=65_536)
    store = open_store(given, rmqstore.ManualClock(1))
    try:
        values = store.engine.config.values
        assert (values["rocksdb.values"], values["flush"], values["hand_over_limit"]) == ("separated", "async", 256)
    finally:
        store.close()
