"""Fixtures: stores of every installed engine and mixed pair, under a clock that stands still until it is moved."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests import one another as ``tests.…``; an editable install of rmqstore has the root on the path already.
if (_ROOT := str(Path(__file__).parent.parent)) not in sys.path:
    sys.path.insert(0, _ROOT)

from rmqstore.server.clients import Limits
from rmqstore_conformance.stores import Pair, Stores, stores_of
from tests.pairs import DURABLE_PAIRS, ENGINES, PAIRS
from tests.server.served import Served


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has no engine to run on here, in place of skipping it."""
    here = Path(__file__).parent

    def without_engine(item: pytest.Item) -> bool:
        reasons = [str(mark.kwargs.get("reason", "")) for mark in item.iter_markers("skip")]
        return item.path.is_relative_to(here) and any(reason.startswith("got empty parameter set") for reason in reasons)

    absent = [item for item in items if without_engine(item)]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]


@pytest.fixture(params=PAIRS, ids=str)
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    """Stores of every engine and mixed pair."""
    with stores_of(request.param) as factory:
        yield factory


@pytest.fixture(params=[Pair(name, name) for name in ENGINES], ids=str)
def engine_stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    """Stores of every single engine, for what does not depend on the pairing."""
    with stores_of(request.param) as factory:
        yield factory


@pytest.fixture(params=DURABLE_PAIRS, ids=str)
def durable_stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    """Stores of what outlives a close."""
    with stores_of(request.param) as factory:
        yield factory


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A store that is served in this process, within the limits that the mark ``limits`` of a test names."""
    limits = request.node.get_closest_marker("limits")
    made = Served(tmp_path, **({} if limits is None else {"limits": Limits(**limits.kwargs)}))
    yield made
    made.close()
