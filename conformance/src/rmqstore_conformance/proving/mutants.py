"""The mutants: wrong engines, each with one fault, on which the suite itself is tried. A plug-in module that announces them all."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from rmqstore.contract import EngineInfo
from rmqstore.hookspecs import hookimpl
from rmqstore_conformance.proving import (
    mutants_of_pairs,
    mutants_of_pops,
    mutants_of_races,
    mutants_of_rules,
    mutants_of_timers,
    mutants_of_values,
)
from rmqstore_conformance.proving.planting import MEMORY, WrongEngine, mutants_in

PARTS: Final[tuple[ModuleType, ...]] = (
    mutants_of_timers,
    mutants_of_pops,
    mutants_of_races,
    mutants_of_pairs,
    mutants_of_values,
    mutants_of_rules,
)

MUTANTS: Final[tuple[WrongEngine, ...]] = tuple(each for each in mutants_in(*PARTS) if each.base == MEMORY)
"""All of them, in the order of their modules."""

_KEEPS_NOTHING: Final = "`memory` keeps nothing on disk, nor from one open to the next"
_ONE_LOG: Final = "`memory` has one log for both sides, and no second engine beside it"
_FRAMEWORK: Final = "the framework sees to it before the engine is asked"

WITHOUT_A_MUTANT: Final = {
    **dict.fromkeys(("T11", "C5", "R2", "R3", "R5", "R6", "R7", "F1", "F2"), _KEEPS_NOTHING),
    "H3": _ONE_LOG,
    **dict.fromkeys(("R4", "X1", "X2", "X4", "X5"), _FRAMEWORK),
}
"""Clauses that no mutant is meant to break, and why."""


@hookimpl
def rmqstore_engines() -> list[EngineInfo]:
    """Announce each as an engine."""
    return [each.info for each in MUTANTS]
