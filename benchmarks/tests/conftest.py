"""What several tests of the benchmarks take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore.cli import main
from rmqstore_benchmarks.load.command import durable_engines
from rmqstore_benchmarks.load.ledger import table_of
from rmqstore_benchmarks.load.plan import SETTINGS, Plan


@pytest.fixture(scope="session")
def engine() -> str:
    """Return a durable engine."""
    return next(iter(durable_engines()), None) or pytest.skip("no durable engine")


@pytest.fixture
def new_plan(tmp_path: Path, engine: str) -> Callable[..., Plan]:
    """Return what makes the plan of a load test, and its directories."""

    def made(messages: int, **given: Any) -> Plan:
        plan = Plan(**{"engine": engine, "directory": str(tmp_path / "run"), "messages": messages, "shards": 1} | given)
        plan.make_directories()
        return plan

    return made


def told(plan: Plan, shard: int = 0) -> list[dict[str, Any]]:
    """Return all rows of the ledger of a shard."""
    return [row for batch in table_of(plan.ledger_path(shard)) for row in batch.to_pylist()]


@contextmanager
def store_of(plan: Plan, now_ms: int, shard: int = 0, **settings: int) -> Iterator[rmqstore.Store]:
    """Give the store of a shard of a load test, in hands that know nothing of its ledger."""
    clock = rmqstore.ManualClock(now_ms)
    with rmqstore.open(plan.store_path(shard), engine=plan.engine, clock=clock, services=False, **{**SETTINGS, **settings}) as store:
        yield store


def run_command(*arguments: str | Path) -> int:
    """Run a command line of ``rmqstore``; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    return int(ended.value.code or 0)
