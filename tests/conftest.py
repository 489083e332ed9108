"""Fixtures: stores of every installed engine and mixed pair, under a clock that stands still until it is moved."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Tests import one another as ``tests.…``; an editable install of rmqstore has the root on the path already.
if (_ROOT := str(Path(__file__).parent.parent)) not in sys.path:
    sys.path.insert(0, _ROOT)

from rmqstore import ManualClock, Store, aio
from rmqstore.server.clients import Limits
from rmqstore.server.connection import Connection
from rmqstore_conformance.stores import Pair, Stores, stores_of
from tests.pairs import DURABLE_PAIRS, ENGINES, PAIRS
from tests.server.served import Lost, Raw, Served, run


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


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Every single engine, by its name."""
    return str(request.param)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A store that is served in this process, within the limits that the mark ``limits`` of a test names."""
    limits = request.node.get_closest_marker("limits")
    made = Served(tmp_path, **({} if limits is None else {"limits": Limits(**limits.kwargs)}))
    yield made
    made.close()


@pytest.fixture
def client(served: Served) -> Store:
    """A client of what is served."""
    return served.connect()


@pytest.fixture
def connection(served: Served) -> Raw:
    """A connection to what is served, for what no client says."""
    return served.raw()


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Lost:
    ask = Connection.ask

    def losing(then: Callable[[], object] = lambda: None) -> None:
        def ask_and_lose(self: Connection, *asked: Any) -> object:
            monkeypatch.setattr(Connection, "ask", ask)
            ask(self, *asked)
            then()
            raise ConnectionResetError("the server is dead")

        monkeypatch.setattr(Connection, "ask", ask_and_lose)

    return losing


@pytest.fixture
def store(served: Served) -> aio.AsyncStore:
    """A client of what is served, for a test that is async."""
    return aio.connect(f"unix:{served.socket}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is async; a client that it has leaves no task behind."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def whole() -> None:
        if isinstance(client := given.get("store"), aio.AsyncStore):
            async with client:
                await test(**given)
            assert asyncio.all_tasks() == {asyncio.current_task()}
        else:
            await test(**given)

    run(whole())
    return True
