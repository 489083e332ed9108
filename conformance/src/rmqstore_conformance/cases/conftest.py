"""The fixtures of the suite once more, nearer to its cases than those of the same names in the directory that a run is started from.

Behind each case, all stores that it left open are looked through: whatever it was about, they must agree with themselves.
"""

from collections.abc import Generator

import pytest

from rmqstore_conformance.fixtures import durable_stores, engine_stores, seed, stores, target, tell
from rmqstore_conformance.stores import Stores

__all__ = ["durable_stores", "engine_stores", "seed", "stores", "target", "tell"]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Look through the stores of a case that has passed, as a part of it."""
    result = yield
    for given in pyfuncitem.funcargs.values():
        if isinstance(given, Stores):
            given.verify()
    return result
