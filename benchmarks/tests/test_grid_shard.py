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

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import rmqstore
from rmqstore_benchmarks.grid import aside
from rmqstore_benchmarks.grid.load import Load, ticks_of
from rmqstore_benchmarks.grid.named import START_MS, workload_named
from rmqstore_benchmarks.grid.shard import Outcome, outcome_of, run_shard
from rmqstore_benchmarks.grid.stores import NULL_ENGINE, RAW, Cell, Run, ShardTask, Variant, open_store
from rmqstore_benchmarks.grid.tables import HISTOGRAMS, PHASES, SECONDS, TABLES

SHORT_S = 0.1


def task(place: Path, engine: str = "memory", settings: dict[str, Any] | None = None, **given: Any) -> ShardTask:
    fields: dict[str, Any] = {"workload": "order-timeout", "body_bytes": 64, "backlog": 1500, "flush": "sync", "seconds": SHORT_S}
    fields |= {"phases": ("fill", "schedule", "cancel", "hand_over", "pop_ack", "mixed", "open_80")}
    cell = Cell(variant=Variant(engine, engine, settings or {}), durability="nothing", shards=1, repeats=1, **(fields | given))
    return ShardTask(Run(cell, 0, 1), 0, str(place / "shard"))


def phase(outcome: Any, name: str) -> dict[str, Any]:
    (row,) = [row for row in outcome.rows["phases"] if row["phase"] == name]
    return row  # type: ignore[no-any-return]


def test_every_phase_leaves_its_rows(tmp_path: Path) -> None:
    given = task(tmp_path, seconds=0.3)
    outcome = run_shard(given)
    assert outcome.wrong == ""
    assert [row["phase"] for row in outcome.rows["phases"]] == list(given.cell.phases)
    assert phase(outcome, "fill")["messages"] == 1500
    assert phase(outcome, "fill")["user_bytes"] == 1500 * (len("orders") + 64 + 10)
    assert phase(outcome, "open_80")["offered_rate"] == pytest.approx(
        0.8 * phase(outcome, "mixed")["messages"] / phase(outcome, "mixed")["wall_s"]
    )
    operations = {(row["phase"], row["operation"]) for row in outcome.rows["histograms"]}
    assert {("schedule", "schedule"), ("cancel", "cancel"), ("pop_ack", "ack"), ("open_80", "slip"), ("open_80", "lateness")} <= operations
    scheduled = Counter[str]()
    for row in outcome.rows["seconds"]:
        scheduled[row["phase"]] += row["scheduled"]
    assert scheduled["fill"] == 1500
    assert scheduled["mixed"] == phase(outcome, "mixed")["messages"]
    assert not Path(given.directory).exists(), "the store is gone"
    for name, schema in (("phases", PHASES), ("seconds", SECONDS), ("histograms", HISTOGRAMS)):
        assert all(set(row) == set(schema.names) for row in outcome.rows[name])


@pytest.mark.parametrize("workload", ["pop-heavy", "order-timeout", "retry-backoff"])
def test_workloads_with_dead_consumers_and_without_cancels_come_out_right(tmp_path: Path, workload: str) -> None:
    phases = tuple(name for name in workload_named(workload).phases if name in ("fill", "hand_over", "pop_ack", "mixed", "open_95"))
    assert run_shard(task(tmp_path, workload=workload, phases=phases)).wrong == ""


def test_the_backlog_has_its_size_when_a_rate_is_looked_for(tmp_path: Path) -> None:
    outcome = run_shard(task(tmp_path, workload="retry-backoff", phases=("fill", "schedule", "mixed"), seconds=0.2))
    assert phase(outcome, "schedule")["messages"] > 1500
    backlogs = [row["backlog"] for row in outcome.rows["seconds"] if row["phase"] == "mixed"]
    # Between two hand-overs, 100 ms, it grows by what is sent meanwhile.
    growth = 0.1 * phase(outcome, "mixed")["messages"] / phase(outcome, "mixed")["wall_s"]
    assert all(0.75 * 1500 <= backlog <= 1.25 * 1500 + 1.5 * growth for backlog in backlogs)


def test_a_burst_is_late_by_as_long_as_it_takes(tmp_path: Path) -> None:
    outcome = run_shard(task(tmp_path, workload="eight-oclock", backlog=20_000, phases=("fill", "hand_over")))
    assert outcome.wrong == ""
    assert sum(row["n"] for row in outcome.rows["histograms"] if row["operation"] == "lateness") == 20_000
    assert phase(outcome, "hand_over")["messages"] == 20_000
    assert sum(row["handed_over"] for row in outcome.rows["seconds"] if row["phase"] == "hand_over") == 20_000


def test_nothing_is_due_while_reminders_roll(tmp_path: Path) -> None:
    outcome = run_shard(task(tmp_path, workload="reminder", phases=("fill", "roll", "hand_over")))
    assert outcome.wrong == ""
    assert phase(outcome, "roll")["calls"] == 8 * 24
    assert phase(outcome, "hand_over")["messages"] > 0


def test_the_null_engine_does_what_needs_no_store(tmp_path: Path) -> None:
    outcome = run_shard(task(tmp_path, engine=NULL_ENGINE))
    assert outcome.wrong == ""
    assert [row["phase"] for row in outcome.rows["phases"]] == ["fill", "schedule", "cancel", "mixed", "open_80"]
    assert phase(outcome, "mixed")["messages"] > 0


def test_timers_go_in_by_lists_and_one_at_a_time_and_messages_come_out_by_one_and_by_many(tmp_path: Path) -> None:
    phases = ("fill", "schedule", "send_lists", "send_one", "hand_over", "pop_one", "pop_ack", "pop_many")
    outcome = run_shard(task(tmp_path, workload="eight-oclock", phases=phases, backlog=20_000, seconds=0.05))
    assert outcome.wrong == ""
    assert [row["phase"] for row in outcome.rows["phases"]] == list(phases)
    for name in phases:
        assert 0 < phase(outcome, name)["call_s"] <= phase(outcome, name)["wall_s"]
    assert phase(outcome, "send_one")["messages"] == phase(outcome, "send_one")["calls"]
    assert phase(outcome, "pop_one")["messages"] * 2 == phase(outcome, "pop_one")["calls"]
    assert phase(outcome, "pop_many")["messages"] > 16 * phase(outcome, "pop_many")["calls"]


def test_consumers_share_what_is_ready(tmp_path: Path) -> None:
    settings = {"default_queues": 4}
    outcome = run_shard(task(tmp_path, settings=settings, phases=("fill", "consume_1", "consume_8"), backlog=4000))
    assert outcome.wrong == ""
    for name in ("consume_1", "consume_8"):
        row = phase(outcome, name)
        assert row["messages"] == 4000
        assert 0.5 < row["first_queue_dry"] <= 1, "one queue was emptied long before another"
        assert 0 <= row["slowest_thread"] <= 1
    assert phase(outcome, "consume_1")["slowest_thread"] == 1


@pytest.mark.parametrize("engine", ["wheel", "rocksdb", "lmdb"])
def test_what_lies_under_an_engine_takes_the_same_timers(tmp_path: Path, engine: str) -> None:
    pytest.importorskip({"wheel": "rmqstore_wheel", "rocksdb": "rocksdict", "lmdb": "lmdb"}[engine])
    outcome = run_shard(task(tmp_path, engine=f"raw-{engine}", phases=("fill", "schedule", "send_one", "hand_over")))
    assert outcome.wrong == ""
    assert [row["phase"] for row in outcome.rows["phases"]] == ["fill", "schedule", "send_one"]
    assert phase(outcome, "fill")["messages"] == 1500
    assert phase(outcome, "send_one")["calls"] > 0


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
        (send_batch_that_cuts, ("fill", "hand_over", "pop_ack"), " damaged (ids ", "order-timeout"),
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
    monkeypatch.setattr(aside, "limited_group", lambda name, limit: nullcontext())
    monkeypatch.setattr(aside, "_child", lambda *_: subprocess.CompletedProcess([], code, "", said))
    outcome = run_shard(task(tmp_path, phases=("fill", "cold_drain")))
    told = f"cold_drain ended with {code} in"
    assert (told in outcome.wrong, any(told in note for note in outcome.notes)) == (is_refused, not is_refused)
    assert said in outcome.wrong + outcome.notes[0] if not is_refused else said in outcome.wrong


def test_a_task_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    outcome = outcome_of(task(tmp_path, settings={"no.such": 1}))
    assert "ConfigError" in outcome.failed
    assert not any(outcome.rows.values())
    assert not Path(tmp_path, "shard").exists()


def test_outcomes_travel_and_become_tables(tmp_path: Path) -> None:
    outcome = outcome_of(task(tmp_path, phases=("fill",)))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(outcome), type=Outcome) == outcome
    assert set(outcome.rows) == set(TABLES) - {"runs"}
    assert len(pa.Table.from_pylist(outcome.rows["phases"], PHASES)) == 1


@pytest.mark.crash
def test_what_a_killed_owner_was_told_is_there_again_and_comes_out_cold(tmp_path: Path) -> None:
    given = task(tmp_path, engine="rocksdb", phases=("fill", "recover", "cold_drain"), backlog=500)
    outcome = run_shard(given)
    assert outcome.wrong == ""
    assert phase(outcome, "recover")["messages"] == 20_500
    if "cold_drain was not run" in " ".join(outcome.notes):
        pytest.skip(outcome.notes[-1])
    drained = phase(outcome, "cold_drain")
    assert drained["messages"] == 20_500
    assert drained["memory_limit_bytes"] > 0
    assert drained["live_bytes"] == 0


def test_a_store_is_opened_with_the_settings_of_the_task(tmp_path: Path) -> None:
    (tmp_path / "shard").mkdir()
    given = task(tmp_path, engine="rocksdb", settings={"rocksdb.values": "separated"}, flush="async", body_bytes=65_536)
    store = open_store(given, rmqstore.ManualClock(1))
    try:
        values = store.engine.config.values
        assert (values["rocksdb.values"], values["flush"], values["hand_over_limit"]) == ("separated", "async", 256)
    finally:
        store.close()
