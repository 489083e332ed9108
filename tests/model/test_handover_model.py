"""The hand-over protocol holds in the model, and each way to get it wrong has a counterexample (docs/handover.md).

The bounds are small so that all of it takes well under a minute; ``python -m tests.model.handover_model`` searches further.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from .handover_model import VARIANTS, Outcome, explore, main, report, walk
from .protocol import Settings

SMALL = {"messages": 2, "ticks": 2, "crashes": 1}

HOLDS: dict[str, dict[str, int]] = {
    "A": {"cancels": 1},
    "A1": {"cancels": 0},
    "A2": {"cancels": 0},
    "A3": {"messages": 3, "cancels": 0, "set_backs": 0},
    "A5": {"cancels": 1, "set_backs": 0},
    "A10": {"cancels": 0},
    "A11": {"cancels": 1, "set_backs": 0},
    "D3": {},
    "E4": {"cancels": 1, "set_backs": 0},
    "E7": {},
    "G2": {"cancels": 0},
    "J2": {"set_backs": 1},
    "J4": {"set_backs": 0},
}
"""Variants that break nothing, with what differs from SMALL to keep them quick."""

BREAKS = [name for name, variant in VARIANTS.items() if variant.breaks]


def bounded(name: str, bounds: dict[str, int] | None = None) -> Outcome:
    return explore(VARIANTS[name].within(**{**SMALL, **(bounds or {})}))


@pytest.mark.parametrize("name", HOLDS)
def test_no_crash_set_back_or_cancel_breaks_a_clause(name: str) -> None:
    assert VARIANTS[name].breaks is None
    outcome = bounded(name, HOLDS[name])
    assert outcome.complete
    assert outcome.trace is None, report(name, outcome)
    assert outcome.states > 1000, "the bounds leave nothing to search"


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.is_walked])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_walk_breaks_a_clause(name: str, data: st.DataObject) -> None:
    walk(VARIANTS[name].settings, lambda labels: data.draw(st.sampled_from(labels)))


@pytest.mark.parametrize("name", BREAKS)
def test_a_wrong_protocol_has_a_counterexample(name: str) -> None:
    outcome = bounded(name)
    clause = VARIANTS[name].breaks
    assert outcome.trace is not None, f"{name} ({VARIANTS[name].title}) is wrong, but the model does not show it"
    assert outcome.violation.startswith(f"{clause}:"), report(name, outcome)


@pytest.mark.parametrize(("limit", "set_backs", "corners"), [(2, 0, 1), (2, 1, 2), (1, 0, 2)])
def test_a_set_back_costs_a_corner_and_a_batch_that_is_not_the_last_costs_one(limit: int, set_backs: int, corners: int) -> None:
    assert bounded("A", {"cancels": 0, "crashes": 0, "limit": limit, "set_backs": set_backs}).deepest == corners


def test_the_search_gives_up_at_its_limit_and_says_so() -> None:
    outcome = explore(Settings(max_states=500))
    assert not outcome.complete
    assert outcome.trace is None
    assert 500 < outcome.states < 600


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if not variant.is_walked])
def test_every_variant_ends_as_it_says_within_its_own_bounds(name: str) -> None:
    outcome = explore(VARIANTS[name].settings)
    assert VARIANTS[name].is_as_expected(outcome), report(name, outcome)


def test_the_command_line_shows_a_counterexample_and_judges_the_outcome(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["F1"]) == 0
    shown = capsys.readouterr().out
    assert "F1: a handle is the bare seq" in shown
    assert " 1. put m0 for tick 1 as seq 1" in shown
    assert "C6: the cancel of m0 by its handle hits m1" in shown
    monkeypatch.setitem(VARIANTS, "F1", VARIANTS["F1"]._replace(breaks=None))
    assert main(["F1"]) == 1
    assert "expected: no violation" in capsys.readouterr().out


def test_every_variant_is_explained() -> None:
    text = (Path(__file__).parents[2] / "docs" / "handover.md").read_text(encoding="utf-8")
    missing = [name for name in VARIANTS if f"| {name} |" not in text]
    assert not missing, f"docs/handover.md has no row for {', '.join(missing)}"
