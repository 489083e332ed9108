"""The strangers: wrong engines that no case was written for. A plug-in module that announces them all."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from rmqstore.contract import EngineInfo
from rmqstore.hookspecs import hookimpl
from rmqstore_conformance.proving import (
    strangers_of_answers,
    strangers_of_copies,
    strangers_of_data,
    strangers_of_pairs,
    strangers_of_rules,
    strangers_of_threads,
    strangers_of_writes,
)
from rmqstore_conformance.proving.planting import WrongEngine

PARTS: Final[tuple[ModuleType, ...]] = (
    strangers_of_data,
    strangers_of_copies,
    strangers_of_rules,
    strangers_of_pairs,
    strangers_of_threads,
    strangers_of_answers,
    strangers_of_writes,
)

STRANGERS: Final[tuple[WrongEngine, ...]] = tuple(each for part in PARTS for each in vars(part).values() if isinstance(each, WrongEngine))
"""All of them, in the order of their modules."""


@hookimpl
def rmqstore_engines() -> list[EngineInfo]:
    """Announce each as an engine."""
    return [each.info for each in STRANGERS]
