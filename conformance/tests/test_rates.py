"""What is said of a wrong engine is true: noticed by which case, within its clause or not, or by none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore.errors import IllegalArgumentError
from rmqstore_conformance.proving.judging import (
    EngineVerdict,
    Judged,
    MutationVerdict,
    WrongEngine,
    judge_all,
    judge_engine,
    judge_mutation,
    reach_of,
    wrong_engines,
)
from rmqstore_conformance.proving.operators import Mutation, modules_of, mutations_of
from rmqstore_conformance.proving.rates import Survivor, rates_of
from rmqstore_conformance.proving.reach import Passed, Reach

MEMORY = "memory"
MODULES = modules_of(["rmqstore.store.handover", "rmqstore.engine.kv.directory"])
QUICK = ("T4.null_or_past_is_in_the_topic_at_the_next_tick", "T1.a_deliver_time_within_the_present_tick_waits")


def mutation(module: str, before: str, after: str) -> Mutation:
    made = mutations_of(module, MODULES[module].read_text(encoding="utf-8"))
    return next(each for each in made if (each.before, each.after) == (before, after))


FORGETS_NOTHING = mutation("rmqstore.store.handover", "timers.forget(pops.durable_cursor())", "pass")
GIVES_NOTHING = mutation("rmqstore.store.handover", "not count", "count")
COPIES_NOTHING = mutation("rmqstore.engine.kv.directory", "copy_file(entry.path, copy / entry.name)", "pass")


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Reach:
    file = tmp_path_factory.mktemp("reach") / "reach.json"
    chosen = " or ".join(name.partition(".")[2] for name in QUICK)
    return reach_of(MEMORY, "core", MODULES, file, "-k", chosen)


def test_a_mutation_is_tried_by_the_cases_that_run_through_it(reach: Reach) -> None:
    assert reach.cases_at(FORGETS_NOTHING).keys() == set(QUICK)
    assert not reach.cases_at(COPIES_NOTHING)
    assert "rmqstore.store.handover" in reach.imported


def test_the_shortest_cases_come_first_and_import_reaches_all() -> None:
    cases = {
        "long": Passed(seconds=3, blind=False, lines={"m": [4]}),
        "short": Passed(seconds=1, blind=False, lines={"m": [4, 5]}),
        "other": Passed(seconds=2, blind=False, lines={"m": [9]}),
        "tracer": Passed(seconds=4, blind=True, lines={}),
    }
    reach = Reach(cases=cases, imported=["m"])
    at = Mutation(module="m", operator="number", number=0, line=4, last_line=4, function="f", before="1", after="2")
    assert list(reach.cases_at(at)) == ["short", "long", "tracer"]
    assert not reach.cases_at(_at(at, line=20))
    assert list(reach.cases_at(_at(at, line=20, function=""))) == ["short", "other", "long", "tracer"]
    assert not reach.cases_at(_at(at, module="n"))


def _at(mutation: Mutation, line: int = 4, function: str = "f", module: str = "m") -> Mutation:
    return Mutation(module=module, operator="number", number=0, line=line, last_line=line, function=function, before="1", after="2")


def test_a_mutation_is_caught_survives_or_is_not_reached(reach: Reach) -> None:
    caught = judge_mutation(GIVES_NOTHING, {MEMORY: reach}, "core")
    assert (caught.verdict, caught.ground, caught.level) == ("caught", "memory", "core")
    assert caught.case in QUICK
    assert caught.seen
    survived = judge_mutation(FORGETS_NOTHING, {MEMORY: reach}, "core")
    assert (survived.verdict, survived.tried) == ("survived", len(QUICK))
    assert judge_mutation(COPIES_NOTHING, {MEMORY: reach}, "core").verdict == "not reached"


def test_an_engine_that_does_not_open_is_stillborn() -> None:
    module = "rmqstore.engine.schema"
    source = modules_of([module])[module].read_text(encoding="utf-8")
    too_many = next(each for each in mutations_of(module, source) if (each.before, each.after) == ("5", "6"))
    reach = Reach(cases={QUICK[0]: Passed(seconds=1, blind=False, lines={})}, imported=[module])
    verdict = judge_mutation(too_many, {MEMORY: reach}, "core")
    assert (verdict.verdict, verdict.tried) == ("stillborn", 0)
    assert "too many values to unpack" in verdict.seen


PLUGIN = "rmqstore_conformance.proving.mutants"


@pytest.mark.slow  # three runs of the core
@pytest.mark.timeout(600)
def test_an_engine_is_noticed_within_its_clause_or_outside_it() -> None:
    early = next(each for each in wrong_engines(PLUGIN) if each.engine == "mutant_fires_early")
    within = judge_engine(early, "core", 1)
    assert (within.verdict, within.core, within.core_within) == ("within", True, True)
    assert within.within[0].startswith("T1.")
    as_if = WrongEngine(engine=early.engine, plugin=PLUGIN, what=early.what, kind="early", clause="R6")
    outside = judge_engine(as_if, "core", 1)
    assert (outside.verdict, outside.within, len(outside.outside)) == ("outside", [], 1)
    assert (outside.core, outside.core_within) == (True, False)
    only = judge_engine(early, "core", 1, within_only=True)
    assert (only.verdict, only.core_within, only.outside) == ("within", True, [])


def test_a_plugin_without_wrong_engines_is_refused() -> None:
    with pytest.raises(IllegalArgumentError, match="has no wrong engines"):
        wrong_engines("rmqstore_conformance.proving.bare")


def test_what_is_judged_is_not_judged_again(tmp_path: Path) -> None:
    judged = Judged(tmp_path / "judged", MutationVerdict)
    asked: list[str] = []

    def judge(each: Mutation) -> MutationVerdict:
        asked.append(each.id)
        return MutationVerdict(mutation=each, verdict="survived")

    told: list[str] = []
    judge_all([FORGETS_NOTHING], judge, judged, 1, told.append)
    judge_all([FORGETS_NOTHING, GIVES_NOTHING], judge, Judged(tmp_path / "judged", MutationVerdict), 1, told.append)
    assert asked == [FORGETS_NOTHING.id, GIVES_NOTHING.id]
    assert [each.id for each in Judged(tmp_path / "judged", MutationVerdict).verdicts] == asked
    assert told[1].startswith(f"1/1 {GIVES_NOTHING.id} survived")
    again = Judged(tmp_path / "judged", MutationVerdict)
    again.forget([GIVES_NOTHING.id])
    again.add(MutationVerdict(mutation=GIVES_NOTHING, verdict="caught"))
    again.forget(["survived"])
    assert [each.id for each in again.verdicts] == [GIVES_NOTHING.id]
    assert [each.verdict for each in Judged(tmp_path / "judged", MutationVerdict).verdicts] == ["survived", "caught"]


def test_the_rates_leave_out_what_changes_nothing_and_what_no_case_runs_through() -> None:
    verdicts = [
        MutationVerdict(mutation=_at(FORGETS_NOTHING, line=line), verdict=verdict, level=level)
        for line, (verdict, level) in enumerate(
            [
                ("caught", "core"),
                ("caught", "extended"),
                ("survived", ""),
                ("survived", ""),
                ("survived", ""),
                ("not reached", ""),
                ("stillborn", ""),
            ]
        )
    ]
    same = Survivor(id=verdicts[2].id, function="f", before="1", after="2", triage="equivalent", why="Nothing asks.")
    since = Survivor(id=verdicts[3].id, function="f", before="1", after="2", triage="closed", why="A case.")
    rates = rates_of(verdicts, [_engine("within"), _engine("outside"), _engine("survived")], [same, since], seed=1)
    (tally,) = rates.modules
    assert (tally.caught, tally.core, tally.survived, tally.equivalent, tally.closed, tally.not_reached) == (2, 1, 3, 1, 1, 1)
    assert tally.rate == pytest.approx(3 / 4)
    assert rates.stillborn == 1
    assert [each.triage for each in rates.survivors] == ["equivalent", "closed", "open"]
    (clause,) = rates.clauses
    assert (clause.name, clause.engines, clause.caught, clause.within, clause.core) == ("T", 3, 2, 1, 2)
    assert [each.engine for each in rates.loose] == ["outside", "survived"]


def _engine(verdict: str) -> EngineVerdict:
    return EngineVerdict(
        engine=verdict,
        plugin="p",
        what="It is wrong.",
        kind="",
        clause="T1",
        level="full",
        within=["T1.a"] if verdict == "within" else [],
        outside=["T2.a"] if verdict == "outside" else [],
        core=verdict != "survived",
        core_within=verdict == "within",
    )
