"""Fixtures of the cases, those of other distributions included: stores of the engines under test, by a clock that stands still until moved.

They are there in runs that name an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest

from rmqstore_conformance.collecting import EVIDENCE
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
    for name, choose in _CHOICES.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, choose(target), ids=lambda pair: str(pair))


def _durable(pairs: Sequence[Pair]) -> list[Any]:
    """Return the pairs; a case about what outlives a close cannot be tried on one that keeps nothing."""
    return [pair if pair.durable else _absent(pair, _NOT_DURABLE) for pair in pairs]


def _absent(pair: Pair, reason: str) -> Any:
    return pytest.param(pair, marks=pytest.mark.skip(reason=reason))


_CHOICES: Final[dict[str, Callable[[Target], list[Any]]]] = {
    "pair": lambda target: list(target.pairs),
    "first_pair": lambda target: [min(target.pairs, key=lambda pair: pair.durable)],
    "engine_pair": lambda target: list(target.engines),
    "durable_pair": lambda target: _durable(target.pairs),
    "durable_engine": lambda target: _durable(target.engines),
    "mixed_pair": lambda target: list(target.mixed) or [_absent(target.pairs[0], _ALONE)],
}
"""By fixture: its pairs of a target."""


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    """What the run is aimed at."""
    found: Target = request.config.stash[TARGET]  # type: ignore[assignment]
    return found


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of all that is random."""
    return int(request.config.option.rmq_seed)


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Takes down what a case has to show for itself, for the report."""
    return lambda found: request.node.user_properties.append((EVIDENCE, str(found)))


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
