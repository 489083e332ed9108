"""Stores to move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmqstore_conformance.stores import Pair, Stores, stores_of
from tests.pairs import ENGINES


@pytest.fixture(params=ENGINES)
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    """Stores of each engine, or of those that a test names."""
    with stores_of(Pair(request.param, request.param)) as factory:
        yield factory
