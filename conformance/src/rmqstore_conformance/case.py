"""One case of the suite: its id, the clauses that it tries to refute, and whether it has its turn in a run."""

from __future__ import annotations

import inspect
import re
from typing import Any

import msgspec
import pytest

from rmqstore.contract import Capabilities, Support
from rmqstore_conformance.clauses import clause, clauses
from rmqstore_conformance.stores import Pair
from rmqstore_conformance.targets import Level, Target, capabilities_of, version_of

FIRST_VERSION = "1.0"
_PAIRS = ("pair", "first_pair", "engine_pair", "durable_pair", "durable_engine", "mixed_pair")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One case on one pair of engines.

    ``pair`` is what it runs on; ``subject`` is the pair that the result is about, another one when a case takes a second engine as well.

    Attributes:
        id: the clause's id and a name, with what the case is repeated for in brackets: ``T2.by_the_first_tick[500]``.
        text: what is tried, in a sentence.
        needs: fields of ``Capabilities`` that it cannot do without.
        since: the first version of the suite that has it.
        nodeid: by which pytest runs it alone.
    """

    id: str
    clauses: tuple[str, ...]
    text: str
    pair: Pair
    subject: Pair
    level: Level
    needs: tuple[str, ...]
    since: str
    nodeid: str

    def to_dict(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


def case_of(item: pytest.Item, target: Target) -> Case:
    """Return the case that a collected test is.

    Raises:
        pytest.UsageError: it names no clause, or a capability that is none.
    """
    name = getattr(item, "originalname", item.name).removeprefix("test_")
    ids = (*clauses_in(name), *(clause(str(given)).id for mark in item.iter_markers("clause") for given in mark.args))
    needs = tuple(str(name) for mark in item.iter_markers("needs") for name in mark.args)
    if not ids:
        raise pytest.UsageError(f"{item.nodeid} names no clause: begin its name with one, or mark it with @pytest.mark.clause(...)")
    if unknown := set(needs) - set(Capabilities.__struct_fields__):
        raise pytest.UsageError(f"{item.nodeid} needs {', '.join(sorted(unknown))}, which is no field of Capabilities")
    given: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    pair = next((given[name] for name in _PAIRS if name in given), None)
    if pair is None:
        raise pytest.UsageError(f"{item.nodeid} asks for no engine: take one of the fixtures {', '.join(_PAIRS)}, or stores of one")
    prefix = f"{ids[0].lower()}_"
    subject = pair if pair in target.pairs else next(each for each in target.pairs if set(each) & set(pair))
    asked = next((Level(str(mark.args[0])) for mark in item.iter_markers("level")), None)
    return Case(
        id=f"{ids[0]}.{name.removeprefix(prefix)}{_repeated(item, given, subject)}",
        clauses=tuple(dict.fromkeys(ids)),
        text=(inspect.getdoc(item.obj) or "").split("\n\n")[0].replace("\n", " ") if isinstance(item, pytest.Function) else "",
        pair=pair,
        subject=subject,
        level=asked or max(clause(ids[0]).level, Level.EXTENDED if needs else Level.CORE),
        needs=needs,
        since=next((str(mark.args[0]) for mark in item.iter_markers("since")), FIRST_VERSION),
        nodeid=item.nodeid,
    )


def clauses_in(name: str) -> tuple[str, ...]:
    """Return the clause with which the name of a case begins, as in ``t2_by_the_first_tick``."""
    begin = re.match(r"[a-z]\d+(?=_)", name)
    return (begin[0].upper(),) if begin and begin[0].upper() in clauses() else ()


def _repeated(item: pytest.Item, given: dict[str, Any], subject: Pair) -> str:
    """Return what tells this case from others of its function about the same pair, in brackets."""
    if not given or not hasattr(item, "callspec"):
        return ""
    parts = [part for part in item.callspec.id.split("-") if part != str(subject)]
    return f"[{'-'.join(parts)}]" if parts else ""


def has_its_turn(case: Case, target: Target) -> bool:
    """Say whether a run goes as far as a case."""
    return case.level <= target.level and version_of(case.since) <= version_of(target.suite_version)


def why_not(case: Case) -> str | None:
    """Return why a case cannot be tried on its engines, which must have declared that."""
    for name in case.needs:
        declared = [getattr(each, name) for each in capabilities_of(case.pair)]
        if worst := next((each for each in declared if isinstance(each, Support) and each is not Support.FULL), None):
            return f"declared absent: {name} is declared {worst.name}"
    return None
