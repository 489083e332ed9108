"""Fixtures of the cases: stores of the engines under test, by a clock that stands still until it is moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pytest

from rmqstore_conformance.plugin import TARGET
from rmqstore_conformance.stores import Pair, Stores, stores_of
from rmqstore_conformance.targets import Target

_NOT_DURABLE = "declared absent: what is acknowledged does not outlive a close"
_ALONE = "not run: no second durable engine is installed"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each case the pairs of engines that it asks for by the name of a fixture."""
    target = metafunc.config.stash[TARGET]
    if target is None:
        return
    asked = {name: choose(target) for name, choose in _CHOICES.items() if name in metafunc.fixturenames}
    for name, (pairs, reason) in asked.items():
        absent = pytest.param(target.pairs[0], marks=pytest.mark.skip(reason=reason))
        metafunc.parametrize(name, pairs or [absent], ids=str)


def _durable(pairs: Sequence[Pair]) -> tuple[list[Pair], str]:
    return [pair for pair in pairs if pair.durable], _NOT_DURABLE


_CHOICES: Final[dict[str, Callable[[Target], tuple[list[Pair], str]]]] = {
    "pair": lambda target: (list(target.pairs), ""),
    "first_pair": lambda target: (list(target.pairs[:1]), ""),
    "engine_pair": lambda target: (list(target.engines), ""),
    "durable_pair": lambda target: _durable(target.pairs),
    "durable_engine": lambda target: _durable(target.engines),
    "mixed_pair": lambda target: (list(target.mixed), _ALONE),
}
"""By fixture: its pairs of a target, and why there may be none."""


@pytest.fixture
def stores(pair: Pair) -> Iterator[Stores]:
    """Stores of every pair."""
    with stores_of(pair) as factory:
        yield factory


@pytest.fixture
def engine_stores(engine_pair: Pair) -> Iterator[Stores]:
    """Stores for what does not depend on the pairing."""
    with stores_of(engine_pair) as factory:
        yield factory


@pytest.fixture
def durable_stores(durable_pair: Pair) -> Iterator[Stores]:
    """Stores of what outlives a close."""
    with stores_of(durable_pair) as factory:
        yield factory
