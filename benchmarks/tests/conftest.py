"""What several tests of the benchmarks take."""

from __future__ import annotations

import pytest

from rmqstore.cli import main
from rmqstore_benchmarks.load.command import durable_engines


@pytest.fixture(scope="session")
def engine() -> str:
    """Return a durable engine."""
    return next(iter(durable_engines()), None) or pytest.skip("no durable engine")


def run_command(*arguments: str) -> int:
    """Run a command line of ``rmqstore``; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    return int(ended.value.code or 0)
