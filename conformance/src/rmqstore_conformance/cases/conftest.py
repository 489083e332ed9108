"""The fixtures of the suite once more, nearer to its cases than those of the same names in the directory that a run is started from.

Behind each case, all stores that it left open are looked through: whatever it was about, they must agree with themselves.
"""

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from rmqstore_conformance.fixtures import durable_stores, engine_stores, seed, stores, target, tell
from rmqstore_conformance.stores import Stores, directory

__all__ = ["durable_stores", "engine_stores", "seed", "stores", "target", "tell"]


@pytest.fixture
def in_memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where it can be, for what asks of no disk; what a case that fails leaves is kept on the disk."""
    failed = request.session.testsfailed
    with directory() as folder:
        yield folder
        if request.session.testsfailed > failed:
            shutil.copytree(folder, tmp_path / "kept")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Look through the stores of a case that has passed, as a part of it."""
    result = yield
    for given in pyfuncitem.funcargs.values():
        if isinstance(given, Stores):
            given.verify()
    return result
