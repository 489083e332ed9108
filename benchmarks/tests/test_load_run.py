"""The load test as a whole: rounds without Spark, the command's refusals, and what is reported; `make load-test` plays it in Spark."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rmqstore
from benchmarks.tests.conftest import run_command, told
from rmqstore.cli.exits import EXIT_ERROR, EXIT_NOT_DONE
from rmqstore_benchmarks.grid.named import START_MS
from rmqstore_benchmarks.load import command, owner as owners
from rmqstore_benchmarks.load.clients import InjectedFailureError, opened, run_round
from rmqstore_benchmarks.load.closing import FAULTS, STATES, Closed, Fault, audit
from rmqstore_benchmarks.load.command import Request, durable_engines
from rmqstore_benchmarks.load.ledger import Event, files_of
from rmqstore_benchmarks.load.owner import Owner
from rmqstore_benchmarks.load.plan import GROUP, KEPT_TOPIC, TOPIC, Failure, Plan, noted
from rmqstore_benchmarks.load.run import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "load-test.md"


@pytest.mark.parametrize("engine", durable_engines())
def test_a_task_that_failed_is_played_again_and_stores_nothing_twice(engine: str, new_plan: Callable[..., Plan]) -> None:
    plan = new_plan(600, engine=engine, failures=(Failure.TASK, Failure.CONSUMER), chunk=50)
    for round_, fails in ((0, True), (0, False), (1, False), (2, True), (2, False), (3, False)):
        with pytest.raises(InjectedFailureError) if fails else nullcontext():
            run_round(plan, 0, round_)
    rows = told(plan)
    events = Counter(row["event"] for row in rows)
    sends: dict[int, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row["event"] in ("sending", "sent", "repeated"):
            sends[row["id"]][row["event"]] += 1
    assert len(sends) == 600
    for each in sends.values():
        # Stored once: by the send that was told so, or by one that failed behind the call, before anybody was told.
        told_new = each["sent"] - each["repeated"]
        assert told_new == 1 or (told_new == 0 and each["sending"] > each["sent"])
    assert events["opened"] == len(files_of(plan.ledger_path(0))) == 6
    assert events["closed"] == 4
    assert events["abandoned"]
    places = Counter(place for batch in audit(plan, 0) for place in batch.column("place").to_pylist())
    assert set(places) <= {"timer", "passed", "ready", "leased", "dead"}
    assert places["passed"] + places["timer"] + places["ready"] >= 600 - events["cancelled"] - events["cancelling"] + events["cancel_late"]
    assert events["early"] == events["damaged"] == events["old_honoured"] == 0


def test_the_second_attempt_waits_for_the_store_of_the_first(new_plan: Callable[..., Plan], engine: str) -> None:
    plan = new_plan(20, chunk=10, patience_s=0.0)
    with rmqstore.open(plan.store_path(0), engine=engine, services=False), pytest.raises(rmqstore.StoreLockedError):
        run_round(plan, 0, 0)
    run_round(plan, 0, 0)


# ---------------------------------------------------------------- stores that another process serves


@pytest.mark.parametrize("engine", durable_engines())
def test_a_served_store_keeps_all_when_its_owner_is_killed(engine: str, new_plan: Callable[..., Plan]) -> None:
    plan = new_plan(300, engine=engine, failures=(Failure.OWNER, Failure.CONSUMER), chunk=25, is_served=True)
    for round_ in range(plan.rounds + 1):
        run_round(plan, 0, round_)
    events = Counter(row["event"] for row in told(plan))
    assert events["sending"] == events["sent"] == 300
    assert events["opened"] == events["closed"] == noted(plan.injected_path(), Failure.OWNER) == plan.rounds + 1
    places = Counter((row["place"], row["id"]) for batch in audit(plan, 0) for row in batch.to_pylist())
    assert {place for place, _ in places} <= {"timer", "passed", "ready", "leased", "dead"}
    asked, late = ({row["id"] for row in told(plan) if row["event"] == event} for event in ("cancelling", "cancel_late"))
    assert {number for _, number in places} | (asked - late) >= set(range(300)), "a cancel by key may be in doubt"
    assert set(places.values()) == {1}


def test_what_a_repeat_is_told_is_in_doubt(new_plan: Callable[..., Plan]) -> None:
    """ALREADY_ACKED behind the death of the owner may be the answer to this call's own first try."""
    plan = new_plan(2, is_served=True)
    with opened(plan, 0, 0) as shard:
        shard.store.send_batch(plan.batch(np.arange(2)), deliver_at_ms=None, marks=(b"m",))
        shard.move_to(START_MS + 20 * 24 * 3600_000 + plan.longest_delay_ms())
        shard.store.tick()
        popped = [each for topic in (TOPIC, KEPT_TOPIC) for each in shard.store.pop(topic, GROUP)]
        assert len(popped) == 2
        shard.store.ack(popped)
        owner = shard.owner
        assert owner is not None

        def acked_again() -> Any:
            owner.kill()
            return shard.store.ack(popped)

        ids, attempts = np.arange(2), np.ones(2, np.int64)
        shard.asked("ack", Event.ACKING, ids, attempts, acked_again, lambda _: Event.ACK_REPEATED)
        assert shard.asked("release", Event.RELEASING, ids, attempts, lambda: broken(owner), lambda _: Event.RELEASED) == []
        shard.asked("ack", Event.ACKING, ids, attempts, lambda: shard.store.ack(popped), lambda _: Event.ACK_REPEATED)
        with pytest.raises(rmqstore.StoreUnavailableError):
            shard.asked("release", Event.RELEASING, ids, attempts, lambda: broken(), lambda _: Event.RELEASED)
    assert Counter(row["event"] for row in told(plan) if row["id"] >= 0) == {"acking": 4, "releasing": 4, "ack_repeated": 2}


def broken(owner: Owner | None = None) -> list[Any]:
    """Be a call whose connection breaks, since its owner is killed if there is one."""
    if owner is not None:
        owner.kill()
    raise rmqstore.StoreUnavailableError("the connection broke; it may have been done")


def test_an_attempt_waits_for_the_shard_while_its_owner_is_begun_anew(new_plan: Callable[..., Plan], engine: str) -> None:
    plan = new_plan(20, chunk=10, patience_s=0.0, is_served=True)
    with opened(plan, 0, 0), pytest.raises(rmqstore.StoreLockedError):
        run_round(plan, 0, 0)
    with rmqstore.open(plan.store_path(0), engine=engine, services=False), pytest.raises(rmqstore.StoreUnavailableError, match="has ended"):
        run_round(plan, 0, 0)
    run_round(plan, 0, 0)


def test_an_owner_that_cannot_begin_says_why(new_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor() -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(owners._PROCESSES, "Pipe", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        Owner(new_plan(20, chunk=10, is_served=True), 0)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"messages": 0}, "--messages"),
        ({"shards": 0}, "--shards"),
        ({"messages": 3, "shards": 4}, "less than --shards 4"),
        ({"seed": -1}, "--seed"),
        ({"failures": ["task,twins"]}, "'twins' is none of task"),
        ({"failures": ["none", "task"]}, "'none' is none of"),
        ({"failures": ["executor"]}, "needs --cluster"),
        ({"failures": ["owner"]}, "needs --served"),
        ({"cluster": True, "master": "spark://there:7077"}, "exclude each other"),
        ({"master": "local[2]"}, r"local\[2,4\]"),
        ({"master": "local"}, "never tries a task again"),
        ({"master": "local[2,1]"}, "never tries a task again"),
        ({"engines": ["nosuch"]}, "nosuch"),
        ({"directory": Path("/no/such/place")}, "/no/such/place"),
        ({"engines": ["memory"]}, "'memory' keeps nothing"),
    ],
)
def test_bad_input_is_refused_by_name_before_anything_runs(given: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "session", None)
    with pytest.raises(rmqstore.RmqstoreError, match=words):
        next(command.run(Request(**given)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, set(Failure) - {Failure.EXECUTOR, Failure.OWNER}),
        ({"cluster": True}, set(Failure) - {Failure.OWNER}),
        ({"served": True}, set(Failure) - {Failure.EXECUTOR}),
        ({"cluster": True, "served": True}, set(Failure)),
        ({"failures": ["none"]}, set()),
        ({"failures": ["twin"], "master": "local[2]"}, {Failure.TWIN}),
    ],
)
def test_failures_by_default_are_those_that_the_place_can_show(given: dict[str, Any], expected: set[Failure]) -> None:
    assert {failure for plan in command.plans(Request(**given)) for failure in plan.failures} == expected


def test_the_command_refuses_what_it_could_not_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, file in (("--report", "load.txt"), ("--report", str(tmp_path / "no" / "load.md")), ("--keep", str(tmp_path))):
        assert run_command("load-test", option, file) == EXIT_ERROR
        assert file in capsys.readouterr().err


def test_without_java_the_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "why_not", lambda: "there is no Java runtime")
    assert run_command("load-test", "--messages", "100") == EXIT_ERROR
    assert "no Java runtime" in capsys.readouterr().err


def test_without_the_benchmarks_the_command_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rmqstore_benchmarks.load.command", None)
    assert run_command("load-test") == EXIT_ERROR
    assert "pip install 'rmqstore-benchmarks[spark]'" in capsys.readouterr().err


# ---------------------------------------------------------------- what is reported


def outcome(injected: int = 1, **changes: Any) -> Outcome:
    states = {"cancelled": 1, "acked": 7, "dead": 1, "pending": 1, "none": 0}
    numbers = dict.fromkeys(("deliveries", "redeliveries", "attempts", "died", "waited", "deaths", "repeated"), 3)
    closed = {"ids": 10, "states": states, "in_doubt": {"cancelled": 0, "acked": 1}, "faults": {}, "listed": [], "broken": []}
    return Outcome(Plan("lmdb", "there", 10, 1), Closed(**numbers | closed | changes), {"task": injected}, {"round 1": 2.0, "audit": 1.0})


def test_a_fault_ends_with_3_and_is_listed_with_its_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = outcome(faults={"lost": 1}, listed=[Fault(4, 0, ["lost"], ["0.0 s, file 0 of shard 0: sent"])])
    monkeypatch.setattr(command, "run", lambda request, told: iter([outcome(), wrong]))
    files = [tmp_path / "load.md", tmp_path / "load.json"]
    assert run_command("load-test", *(word for file in files for word in ("--report", str(file)))) == EXIT_NOT_DONE
    shown = capsys.readouterr().out
    assert "the ledger closes" in shown
    for text in (shown, files[0].read_text()):
        assert f"id 4, shard 0: lost ({FAULTS['lost'][0]})" in text
        assert "file 0 of shard 0: sent" in text
    assert [engine["problems"] for engine in json.loads(files[1].read_text())["engines"]] == [[], ["1 ids: lost"]]


def test_ends_that_are_missing_and_failures_that_did_not_happen_are_problems() -> None:
    assert outcome().problems() == []
    assert outcome(states=dict.fromkeys(STATES, 1) | {"none": 6}).problems() == ["10 ids, but 4 ends"]
    assert outcome(injected=0).problems() == ["no task failed, though that was asked for"]


def test_the_page_tells_every_fault() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name, (meaning, _) in FAULTS.items() if f"| {name} | {meaning} |" not in page] == []
    assert [failure.value for failure in Failure if f"| `{failure.value}` |" not in page] == []
