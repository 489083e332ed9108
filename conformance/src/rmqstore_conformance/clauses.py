"""The clauses, read from the contract's page, and how far a run must go to check each."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from rmqstore.errors import IllegalArgumentError
from rmqstore_conformance.targets import Level

_PAGE: Final = "contract.md"
_HEADING: Final = re.compile(r"^### ([A-Z]\d+): (.+)$", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^]]+)\]\([^)]*\)")

_BEYOND_CORE: Final[dict[Level, tuple[str, ...]]] = {
    Level.EXTENDED: ("T6", "T7", "H3", "P9", "Q1", "Q2", "Q3", "R5", "R7", "F4"),
    Level.FULL: ("R2", "R3", "R6", "F1", "F2", "X2", "X4"),
}
"""Clauses that a run of the core does not check; all others are core."""


class Clause(msgspec.Struct, frozen=True, kw_only=True):
    """One promise of the contract.

    Attributes:
        text: the promise in full sentences.
        why: a system in which the opposite happened to its users.
        governed_by: the capability or the setting that shapes the promise.
        level: the first level of a run that checks it.
    """

    id: str
    title: str
    text: str
    why: str
    governed_by: str
    level: Level


@cache
def clauses() -> dict[str, Clause]:
    """Return every clause by its id, in the order of the page."""
    page = _page().read_text(encoding="utf-8")
    found = list(_HEADING.finditer(page))
    ends = [match.start() for match in found[1:]] + [len(page)]
    return {match[1]: _clause(match[1], match[2], page[match.end() : end]) for match, end in zip(found, ends, strict=True)}


def clause(name: str) -> Clause:
    """Return a clause.

    Raises:
        IllegalArgumentError: there is none of this id.
    """
    known = clauses()
    if name.upper() not in known:
        raise IllegalArgumentError(f"there is no clause {name!r}; there are {', '.join(known)}")
    return known[name.upper()]


def _page() -> Path:
    """Return the contract's page: it is built into the distribution; a checkout has it among its docs."""
    beside = Path(__file__).with_name(_PAGE)
    return beside if beside.is_file() else Path(__file__).parents[3] / "docs" / _PAGE


def _clause(name: str, title: str, section: str) -> Clause:
    section = re.split(r"^(?:## |<a id)", section, maxsplit=1, flags=re.MULTILINE)[0]
    text, _, rest = section.partition("**Why.**")
    why, _, governed_by = rest.partition("**Governed by**")
    level = next((level for level, names in _BEYOND_CORE.items() if name in names), Level.CORE)
    plain = (_LINK.sub(r"\1", part).strip() for part in (text, why, governed_by))
    return Clause(id=name, title=title, level=level, **dict(zip(("text", "why", "governed_by"), plain, strict=True)))
