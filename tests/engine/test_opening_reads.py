"""R5: what an open reads of the database."""

from __future__ import annotations

import sys
from unittest.mock import patch

import pytest

from rmqstore.engine.kv.base import OrderedKV
from rmqstore.plugins import get_plugins
from rmqstore_conformance.stores import Pair, Stores, message


@pytest.mark.clause("R5")
def test_r5_an_open_does_not_replay_history(durable_stores: Stores) -> None:
    """R5: after a clean close an open reads about as little of a store with a long past as of a new one."""
    calls: list[int] = []

    def reads_of_an_open(name: str) -> int:
        counted = 0
        patches = []
        for kind in _databases(durable_stores.pair):
            for method in ("scan", "get"):
                original = getattr(kind, method)

                def counting(self: object, *args: object, original: object = original, **kwargs: object) -> object:
                    nonlocal counted
                    found = original(self, *args, **kwargs)  # type: ignore[operator]
                    counted += len(found) if isinstance(found, list) else 1
                    return found

                patches.append(patch.object(kind, method, counting))
        for each in patches:
            each.start()
        try:
            durable_stores.open(name).close()
        finally:
            for each in patches:
                each.stop()
        return counted

    durable_stores.open("new").close()
    old = durable_stores.open("old")
    for step in range(20):
        sent = old.send_batch([message(f"{step}-{n}", deliver_at_ms=durable_stores.clock.now_ms() + 1000 * (n % 50)) for n in range(200)])
        old.cancel([each.handle or "" for each in sent[::10]])
        durable_stores.clock.advance(30_000)
        old.tick()
        old.ack(old.pop("t", "g", max_messages=50))
    old.close()
    calls += [reads_of_an_open("new"), reads_of_an_open("old")]
    assert calls[1] < calls[0] + 100, f"entries read: {calls[0]} of a new store, {calls[1]} of one with 4000 messages behind it"


def _databases(pair: Pair) -> list[type]:
    kinds = []
    for name in dict.fromkeys(pair):
        _, engine = get_plugins().load_engine(name)
        package = type(engine).__module__.partition(".")[0]
        modules = [module for module_name, module in sys.modules.items() if module_name.partition(".")[0] == package]
        kinds += [
            each
            for module in modules
            for each in vars(module).values()
            if isinstance(each, type) and issubclass(each, OrderedKV) and each is not OrderedKV
        ]
    return list(dict.fromkeys(kinds))
