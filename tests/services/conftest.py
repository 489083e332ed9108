"""What the tests of both kinds of workers share."""

from __future__ import annotations

import asyncio
import inspect
import time

import pytest

from rmqstore import Worker
from rmqstore.services import consuming
from rmqstore.services.async_worker import AsyncWorker
from tests.server.test_aio import with_client


@pytest.fixture
def store() -> None:
    """In a test that is async, a client of what is served."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is async."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    with_client(given["served"], lambda store: test(**{**given, "store": store}))
    return True


@pytest.fixture
def asleep_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long the machine has been asleep, of which a keeper has seen nothing yet when it wakes up."""
    asleep = [0.0]
    monkeypatch.setattr(consuming, "now_s", lambda: time.monotonic() + asleep[0])
    monkeypatch.setattr(Worker, "keep", lambda self: None)
    monkeypatch.setattr(AsyncWorker, "keep", lambda self: asyncio.sleep(0))
    return asleep
