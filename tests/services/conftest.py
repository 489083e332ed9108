"""What the tests of both kinds of workers share."""

from __future__ import annotations

import asyncio
import time

import pytest

from rmqstore import Worker
from rmqstore.services import consuming
from rmqstore.services.async_worker import AsyncWorker


@pytest.fixture
def asleep_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long the machine has been asleep, of which a keeper has seen nothing yet when it wakes up."""
    asleep = [0.0]
    monkeypatch.setattr(consuming, "now_s", lambda: time.monotonic() + asleep[0])
    monkeypatch.setattr(Worker, "keep", lambda self: None)
    monkeypatch.setattr(AsyncWorker, "keep", lambda self: asyncio.sleep(0))
    return asleep
