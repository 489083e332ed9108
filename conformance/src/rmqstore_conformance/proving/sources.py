"""Which modules are mutated, and a sample of their mutations that is spread evenly over modules and operators."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from rmqstore.errors import IllegalArgumentError
from rmqstore_conformance.proving.operators import Mutation, mutations_of

MEMORY: Final = ("rmqstore_memory.*",)
KIT: Final = (
    "rmqstore.engine.*",
    "rmqstore.contract.*",
    *(f"rmqstore.store.{name}" for name in ("store", "reader", "opening", "sending", "receipts", "handover", "tick", "lookup")),
    *(f"rmqstore.store.{name}" for name in ("administration", "dead_letters")),
    *(f"rmqstore.{name}" for name in ("message", "batch", "digests")),
)
"""What engines are made with, and the calls of a store above it."""


def modules_of(patterns: Iterable[str]) -> dict[str, Path]:
    """Return the source of each module whose import name fits one of some patterns (``rmqstore.engine.*``), in their order.

    Raises:
        IllegalArgumentError: no module fits a pattern.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        root = pattern.partition(".")[0]
        spec = importlib.util.find_spec(root)
        places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
        names = {_name(file.relative_to(place.parent)): file for place in places for file in sorted(place.rglob("*.py"))}
        fitting = {name: file for name, file in names.items() if fnmatchcase(name, pattern)}
        if not fitting:
            raise IllegalArgumentError(f"no module fits {pattern!r}")
        found |= fitting
    return found


def _name(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def sample(modules: dict[str, Path], count: int, seed: int) -> list[Mutation]:
    """Return so many mutations: of each module as many as of any other, of each operator as many as there are, up to that.

    The same seed gives the same ones, and a larger count those of a smaller one first.
    """
    chance = random.Random(seed)
    left: dict[str, dict[str, list[Mutation]]] = {}
    for module, file in modules.items():
        by_operator: dict[str, list[Mutation]] = defaultdict(list)
        for each in mutations_of(module, file.read_text(encoding="utf-8")):
            by_operator[each.operator].append(each)
        for some in by_operator.values():
            chance.shuffle(some)
        if by_operator:
            left[module] = dict(by_operator)
    taken: list[Mutation] = []
    of_operator: Counter[str] = Counter()
    while left and len(taken) < count:
        for module in chance.sample(list(left), len(left)):
            operator = _rarest(left[module], of_operator, chance)
            taken.append(left[module][operator].pop())
            of_operator[operator] += 1
            if not left[module][operator]:
                del left[module][operator]
            if not left[module]:
                del left[module]
    return taken[:count]


def _rarest(operators: Iterable[str], taken: Counter[str], chance: random.Random) -> str:
    names: Sequence[str] = list(operators)
    fewest = min(taken[name] for name in names)
    return chance.choice([name for name in names if taken[name] == fewest])
