"""A load test that ended early: what is told, what is left, and that it goes on to the same ledger."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rmqstore
from benchmarks.tests.conftest import run_command, told
from rmqstore.cli.exits import EXIT_ERROR, EXIT_NOT_DONE, EXIT_OK
from rmqstore.spark import sessions
from rmqstore_benchmarks.load import command, run
from rmqstore_benchmarks.load.closing import STATES, Closed
from rmqstore_benchmarks.load.command import Request
from rmqstore_benchmarks.load.owner import held
from rmqstore_benchmarks.load.plan import GROUP, TOPIC, VERSION, Failure, Plan, chunk_for
from rmqstore_benchmarks.load.run import Begun, Done, UnfinishedError, done_of, mark_done, read_begun, write_begun


def begun_in(root: Path, *engines: str) -> Begun:
    root.mkdir()
    plans = tuple(Plan(engine, str(root / engine), 10, 1, seed=7, failures=(Failure.TASK,)) for engine in engines)
    write_begun(root, Begun(plans=plans, master="local[2,4]"))
    return read_begun(root)


def end(plan: Plan) -> None:
    """Mark all jobs of a plan as done."""
    plan.make_directories()
    states = dict.fromkeys(STATES, 0) | {"acked": plan.messages, "none": 0}
    closed = Closed(plan.messages, states, {"cancelled": 0, "acked": 0}, 10, 0, 4, 0, 0, 0, 0, {}, [], [])
    for job in run.job_names(plan):
        mark_done(plan, job, Done(2.0, closed if job == "ledger" else None))
    run.note_once(plan.injected_path(), Failure.TASK, 0, 0)


# ---------------------------------------------------------------- what the directory holds


def test_a_plan_is_read_as_it_was_begun_also_when_its_directory_was_moved(tmp_path: Path) -> None:
    begun = begun_in(tmp_path / "one", "wheel", "lmdb")
    assert begun.master == "local[2,4]"
    moved = (tmp_path / "one").rename(tmp_path / "other")
    plans = read_begun(moved).plans
    assert [plan.directory for plan in plans] == [str(moved / "wheel"), str(moved / "lmdb")]
    assert [msgspec.structs.replace(plan, directory="") for plan in plans] == [
        msgspec.structs.replace(plan, directory="") for plan in begun.plans
    ]


def resume(root: Path, told: Callable[..., None] = lambda *_: None) -> list[Any]:
    return list(command.run(Request(resume=root), told))


def test_a_directory_without_a_load_test_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (tmp_path, tmp_path / "nowhere", Path(__file__)):
        with pytest.raises(rmqstore.IllegalArgumentError, match=re.escape(str(place))):
            resume(place)
    assert run_command("load-test", "--resume", tmp_path) == EXIT_ERROR
    assert "has no load test" in capsys.readouterr().err


def test_a_plan_of_another_version_and_what_is_damaged_is_refused_by_name(tmp_path: Path) -> None:
    root = tmp_path / "run"
    plan = begun_in(root, "wheel").plans[0]
    end(plan)
    mark, file = plan.done_path() / "round-1.json", root / "load-test.json"
    mark.write_text(mark.read_text()[:-20])
    with pytest.raises(rmqstore.CorruptStoreError, match=re.escape(str(mark))):
        resume(root)
    for text in (file.read_text()[:-30], "[]", "{}"):
        file.write_text(text)
        with pytest.raises(rmqstore.CorruptStoreError, match=re.escape(str(file))):
            resume(root)
    # Nothing but the version is looked at: the rest may have another form.
    file.write_text(json.dumps({"version": VERSION + 1, "plan": "of another kind"}))
    with pytest.raises(rmqstore.FormatVersionError, match=f"version {VERSION + 1}"):
        resume(root)


def test_a_load_test_is_played_by_one_process_at_a_time(tmp_path: Path) -> None:
    begun = begun_in(tmp_path / "run", "wheel")
    end(begun.plans[0])
    with held(tmp_path / "run", "mine"), pytest.raises(rmqstore.StoreLockedError, match="another process"):
        resume(tmp_path / "run")
    assert len(resume(tmp_path / "run")) == 1


def test_the_plan_has_settled_all_other_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--messages", "5"], ["--engine", "wheel"], ["--keep", "there"], ["--cluster"], ["--seed", "0"]):
        assert run_command("load-test", "--resume", str(tmp_path), *option) == EXIT_ERROR
        assert f"leave out {option[0]}" in capsys.readouterr().err
    assert run_command("load-test", "--audit", str(tmp_path), "--resume", str(tmp_path)) == EXIT_ERROR
    assert "leave out --" in capsys.readouterr().err


# ---------------------------------------------------------------- going on


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions be objects that can do nothing."""
    monkeypatch.setattr(command, "why_not", lambda: None)
    monkeypatch.setattr(command, "session", lambda *given, **named: contextlib.nullcontext(object()))


def test_one_that_has_ended_tells_its_outcome_again_without_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for plan in begun_in(tmp_path / "run", "wheel", "lmdb").plans:
        end(plan)
    monkeypatch.setattr(command, "session", None)
    monkeypatch.setattr(command, "why_not", lambda: "there is no Java runtime")
    assert run_command("load-test", "--resume", str(tmp_path / "run"), "--report", str(tmp_path / "load.md")) == EXIT_OK
    shown = capsys.readouterr()
    for engine in ("wheel", "lmdb"):
        assert f"{engine}: the ledger closes, each of 10 ids has one end." in shown.out
        assert f"{engine}: the ledger closes." in (tmp_path / "load.md").read_text()
    assert f"tables are in {tmp_path / 'run'}" in shown.err
    (outcome, _) = resume(tmp_path / "run")
    assert outcome.injected == {"task": 1}
    assert len(outcome.job_s) == 6


@pytest.mark.usefixtures("without_spark")
def test_a_job_that_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = begun_in(tmp_path / "run", "wheel").plans[0]
    end(plan)
    for job in ("drain", "audit", "ledger"):
        (plan.done_path() / f"{job}.json").unlink()
        assert run.read_outcome(plan) is None
    played: list[int] = []

    def closed(spark: Any, plan: Plan) -> Any:
        raise RuntimeError("the JVM is gone\nand more")

    monkeypatch.setattr(run, "_played", lambda spark, plan, round_: played.append(round_))
    monkeypatch.setattr(run, "_audited", lambda spark, plan: None)
    monkeypatch.setattr(run, "close_ledger", closed)
    told: list[tuple[str, int, int]] = []
    for _ in range(2):
        told.clear()
        with pytest.raises(UnfinishedError) as ended:
            resume(tmp_path / "run", lambda engine, job, number, jobs: told.append((job, number, jobs)))
        assert told == [(job, number, 6) for number, job in enumerate(run.job_names(plan))]
        assert played == [plan.rounds]
    text = str(ended.value)
    assert "ended in wheel: ledger. RuntimeError: the JVM is gone. Done: wheel: round 1, round 2, round 3, drain, audit." in text
    assert text.endswith(f"rmqstore load-test --resume {tmp_path / 'run'}")
    assert done_of(plan, "ledger") is None


@pytest.mark.usefixtures("without_spark")
def test_an_audit_is_done_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = begun_in(tmp_path / "run", "wheel").plans[0]
    end(plan)
    (outcome,) = resume(tmp_path / "run")
    done: list[str] = []
    monkeypatch.setattr(run, "_played", lambda *_: done.append("round"))
    monkeypatch.setattr(run, "_audited", lambda spark, plan: done.append("audit"))
    monkeypatch.setattr(run, "close_ledger", lambda spark, plan: done.append("ledger") or outcome.closed)
    (again,) = command.run(Request(audit=tmp_path / "run"))
    assert done == ["audit", "ledger"]
    assert again.closed == outcome.closed
    (plan.done_path() / "drain.json").unlink()
    with pytest.raises(rmqstore.IllegalArgumentError, match=r"drain of wheel was not played .* --resume"):
        list(command.run(Request(audit=tmp_path / "run")))
    assert done_of(plan, "ledger") is not None


@pytest.mark.usefixtures("without_spark")
def test_a_directory_that_nobody_named_stays_when_an_error_ended_what_was_begun_there(tmp_path: Path, engine: str) -> None:
    with pytest.raises(UnfinishedError) as ended:
        list(command.run(Request(engines=[engine], messages=40, directory=tmp_path)))
    (left,) = tmp_path.iterdir()
    assert f"--resume {left}" in str(ended.value)
    assert read_begun(left).plans[0].messages == 40


@pytest.mark.usefixtures("without_spark")
def test_a_directory_in_which_nothing_was_begun_is_removed(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*given: Any, **named: Any) -> None:
        raise TimeoutError("no cluster")

    monkeypatch.setattr(command, "session", session)
    with pytest.raises(TimeoutError, match="no cluster"):
        list(command.run(Request(engines=[engine], messages=40, directory=tmp_path)))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- in Spark


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_when_spark_is_killed_the_load_test_says_so_and_goes_on_to_a_closed_ledger(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := sessions.why_not():
        pytest.skip(reason)
    root = tmp_path / "run"
    arguments = ["load-test", "--engine", engine, "--messages", "600", "--shards", "1", "--keep", str(root)]
    plan = Plan(engine, str(root / engine), 600, 1, chunk=chunk_for(600, 1))
    of_second_round = plan.ids(0, plan.chunks_of_round(0, 1)[0])[0]
    with subprocess.Popen([sys.executable, "-m", "rmqstore", *arguments], stderr=subprocess.PIPE, text=True) as killed:
        while killed.poll() is None and ("sent", of_second_round) not in {(row["event"], row["id"]) for row in told(plan)}:
            time.sleep(0.01)
        (jvm,) = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split()
        os.kill(int(jvm), signal.SIGKILL)
        _, stderr = killed.communicate(timeout=180)
    assert killed.returncode == EXIT_ERROR, stderr
    said = stderr.strip().splitlines()[-1]
    assert said.startswith(f"rmqstore: the load test ended in {engine}: round 2. Spark's process, the JVM, is gone")
    assert f"Done: {engine}: round 1." in said
    assert said.endswith(f"rmqstore load-test --resume {root}")
    assert "Connection refused" not in said

    report = tmp_path / "load.json"
    assert run_command("load-test", "--resume", str(root), "--report", str(report)) == EXIT_OK
    shown = capsys.readouterr().out
    assert f"{engine}: the ledger closes, each of 600 ids has one end." in shown
    (found,) = json.loads(report.read_text())["engines"]
    assert found["problems"] == []
    assert sum(found["closed"]["states"][state] for state in STATES) == 600
    # The chunks of the round that was cut off were sent again, under their marks, and stored once.
    assert found["closed"]["repeated"] > 0
    assert found["injected"]["twin"] == 1

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command, "session", None)
        assert run_command("load-test", "--resume", str(root)) == EXIT_OK
    assert capsys.readouterr().out == shown

    with rmqstore.open(root / engine / "stores" / "shard-0000", engine=engine, services=False) as store:
        store.groups.reset_offset(TOPIC, GROUP, 0)
    assert run_command("load-test", "--audit", str(root)) == EXIT_NOT_DONE
    assert "ids: back after its ack" in capsys.readouterr().out
