"""The load test as a whole: rounds without Spark, the command's refusals, and one run in Spark tasks that die."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import rmqstore
from benchmarks.tests import conftest
from rmqstore.cli.exits import EXIT_ERROR, EXIT_NOT_DONE
from rmqstore.spark import sessions
from rmqstore_benchmarks.load import command, report
from rmqstore_benchmarks.load.audit import audit
from rmqstore_benchmarks.load.clients import run_round
from rmqstore_benchmarks.load.closing import FAULTS, STATES, Closed, Fault
from rmqstore_benchmarks.load.command import Request, durable_engines
from rmqstore_benchmarks.load.failures import Failure, InjectedFailureError
from rmqstore_benchmarks.load.ledger import files_of, table_of
from rmqstore_benchmarks.load.plan import Plan
from rmqstore_benchmarks.load.run import Outcome, run_load

PAGE = Path(__file__).parents[2] / "docs" / "load-test.md"


def events(plan: Plan, shard: int) -> Counter[str]:
    return Counter(event for batch in table_of(plan.ledger_path(shard)) for event in batch.column("event").to_pylist())


def events_by_id(plan: Plan, shard: int) -> dict[int, Counter[str]]:
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for batch in table_of(plan.ledger_path(shard)):
        for row in batch.select(["id", "event"]).to_pylist():
            if row["event"] in ("sending", "sent", "repeated"):
                found[row["id"]][row["event"]] += 1
    return found


@pytest.mark.parametrize("engine", durable_engines())
def test_a_task_that_failed_is_played_again_and_stores_nothing_twice(engine: str, tmp_path: Path) -> None:
    plan = Plan(engine, str(tmp_path / "run"), 600, 1, failures=(Failure.TASK, Failure.CONSUMER), chunk=50)
    plan.make_directories()
    with pytest.raises(InjectedFailureError):
        run_round(plan, 0, 0)
    for round_ in range(4):
        try:
            run_round(plan, 0, round_)
        except InjectedFailureError:
            assert round_ == 2
            run_round(plan, 0, round_)
    told = events(plan, 0)
    sends = events_by_id(plan, 0)
    assert len(sends) == 600
    for each in sends.values():
        # Stored once: by the send that was told so, or by one that failed behind the call, before anybody was told.
        told_new = each["sent"] - each["repeated"]
        assert told_new == 1 or (told_new == 0 and each["sending"] > each["sent"])
    assert told["opened"] == len(files_of(plan.ledger_path(0))) == 6
    assert told["closed"] == 4
    assert told["abandoned"]
    places = Counter(place for batch in audit(plan, 0) for place in batch.column("place").to_pylist())
    assert set(places) <= {"timer", "passed", "ready", "leased", "dead"}
    assert places["passed"] + places["timer"] + places["ready"] >= 600 - told["cancelled"] - told["cancelling"] + told["cancel_late"]
    assert places["early"] == places["broken"] == told["early"] == told["damaged"] == told["old_honoured"] == 0


def test_the_second_attempt_waits_for_the_store_of_the_first(tmp_path: Path, engine: str) -> None:
    plan = Plan(engine, str(tmp_path / "run"), 20, 1, chunk=10, patience_s=0.0)
    plan.make_directories()
    with rmqstore.open(plan.store_path(0), engine=engine, services=False), pytest.raises(rmqstore.StoreLockedError):
        run_round(plan, 0, 0)
    run_round(plan, 0, 0)


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
        ({"cluster": True, "master": "spark://there:7077"}, "exclude each other"),
        ({"master": "local[2]"}, r"local\[2,4\]"),
        ({"master": "local"}, "never tries a task again"),
        ({"master": "local[2,1]"}, "never tries a task again"),
        ({"engines": ["nosuch"]}, "nosuch"),
        ({"directory": Path("/no/such/place")}, "/no/such/place"),
    ],
)
def test_bad_input_is_refused_by_name_before_anything_runs(given: dict, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "session", None)
    with pytest.raises(rmqstore.RmqstoreError, match=words):
        next(command.run(Request(**given)))


def test_an_engine_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(rmqstore.UnsupportedOperationError, match="'memory' keeps nothing"):
        command.plans(Request(engines=["memory"]))


def test_failures_by_default_are_those_that_the_place_can_show() -> None:
    for given, expected in (({}, set(Failure) - {Failure.EXECUTOR}), ({"cluster": True}, set(Failure)), ({"failures": ["none"]}, set())):
        assert {failure for plan in command.plans(Request(**given)) for failure in plan.failures} == expected
    assert [plan.failures for plan in command.plans(Request(master="local[2]", failures=["twin"], engines=durable_engines()[:1]))] == [
        (Failure.TWIN,)
    ]


def run_command(*arguments: str) -> int:
    return conftest.run_command("load-test", *arguments)


def test_the_command_refuses_what_it_could_not_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, file in (("--report", "load.txt"), ("--report", str(tmp_path / "no" / "load.md")), ("--keep", str(tmp_path))):
        assert run_command(option, file) == EXIT_ERROR
        assert file in capsys.readouterr().err


def test_without_java_the_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "why_not", lambda: "there is no Java runtime")
    assert run_command("--messages", "100") == EXIT_ERROR
    assert "no Java runtime" in capsys.readouterr().err


def test_without_the_benchmarks_the_command_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rmqstore_benchmarks.load.command", None)
    assert run_command() == EXIT_ERROR
    assert "pip install 'rmqstore-benchmarks[spark]'" in capsys.readouterr().err


# ---------------------------------------------------------------- what is reported


def outcome(**changes: object) -> Outcome:
    closed = {
        "ids": 10,
        "states": {"cancelled": 1, "acked": 7, "dead": 1, "pending": 1, "none": 0},
        "in_doubt": {"cancelled": 0, "acked": 1},
        "deliveries": 9,
        "redeliveries": 1,
        "attempts": 5,
        "died": 1,
        "waited": 1,
        "deaths": 2,
        "abandoned": 3,
        "repeated": 4,
        "faults": {},
        "listed": [],
        "broken": [],
    } | changes
    return Outcome(Plan("lmdb", "there", 10, 1), Closed(**closed), {"task": 1}, {"round 1": 2.0, "audit": 1.0})


def test_a_fault_ends_with_3_and_is_listed_with_its_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = outcome(faults={"lost": 1}, listed=[Fault(4, 0, ["lost"], ["0.0 s, file 0 of shard 0: sent"])])
    monkeypatch.setattr(command, "run", lambda request, told: iter([outcome(), wrong]))
    files = [tmp_path / "load.md", tmp_path / "load.json"]
    assert run_command(*(word for file in files for word in ("--report", str(file)))) == EXIT_NOT_DONE
    shown = capsys.readouterr().out
    assert "the ledger closes" in shown
    for text in (shown, files[0].read_text()):
        assert f"id 4, shard 0: lost ({FAULTS['lost'][0]})" in text
        assert "file 0 of shard 0: sent" in text
    assert [engine["problems"] for engine in json.loads(files[1].read_text())["engines"]] == [[], ["1 ids: lost"]]


def test_ends_that_are_missing_and_failures_that_did_not_happen_are_problems() -> None:
    assert outcome().problems() == []
    assert outcome(states=dict.fromkeys(STATES, 1) | {"none": 6}).problems() == ["10 ids, but 4 ends"]
    quiet = Outcome(outcome().plan, outcome().closed, {"worker": 0}, {})
    assert quiet.problems() == ["no worker failed, though that was asked for"]


def test_the_page_tells_every_fault() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name, (meaning, _) in FAULTS.items() if f"| {name} | {meaning} |" not in page] == []
    assert [failure.value for failure in Failure if f"| `{failure.value}` |" not in page] == []


# ---------------------------------------------------------------- in Spark


@pytest.mark.slow  # `make load-test` does the same in CI
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_the_ledger_closes_although_tasks_and_workers_die_and_twins_run(tmp_path: Path, engine: str) -> None:
    if reason := sessions.why_not():
        pytest.skip(reason)
    failures = (Failure.TASK, Failure.WORKER, Failure.TWIN, Failure.CONSUMER)
    plan = Plan(engine, str(tmp_path / "run"), 1000, 1, failures=failures, chunk=50, rounds=1)
    with sessions.session(quick=True) as spark:
        found = run_load(spark, plan)
    assert found.problems() == []
    assert found.closed.is_closed
    assert all(found.closed.states[state] for state in ("cancelled", "acked", "pending"))
    assert found.injected["task"] == 1
    assert found.injected["worker"] == 2
    assert found.injected["twin"] == 1
    assert found.closed.died >= 2
    assert found.closed.repeated >= 1000
    assert found.closed.redeliveries > 0
    assert report.summary(found)[0] == engine
