"""S1: what an engine declares is there, and what it does not declare is refused without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rmqstore
from rmqstore import Store, UnsupportedOperationError
from rmqstore.contract import Support
from rmqstore.transfer import dump
from rmqstore_conformance.data import topics
from rmqstore_conformance.probing import FLAGS
from rmqstore_conformance.stores import HOUR_MS, Stores, key_of, message, state_of
from rmqstore_conformance.targets import capabilities_of

(T,) = topics(__name__.rpartition(".")[2], 1)

Call = Callable[[Stores, Store], Any]


def _open_fresh(**settings: Any) -> Call:
    return lambda stores, store: stores.open("fresh", **settings).close()


CALLS: dict[str, tuple[Call, ...]] = {
    "cancel_by_key": (lambda stores, store: store.cancel_key(T, key_of("k")),),
    "fifo": (lambda stores, store: store.pop("elsewhere", "g2", order=True),),
    "sql92_filter": (lambda stores, store: store.pop("elsewhere", "g3", filter="price > 10"),),
    "read_only_open": (lambda stores, store: rmqstore.open(stores.root / "store", read_only=True, clock=stores.clock).close(),),
    "retention": (_open_fresh(retention_ms=HOUR_MS),),
    "import_state": (lambda stores, store: dump(store, stores.root / "dump"), lambda stores, store: store.transfer.digest()),
    "snapshot": (lambda stores, store: store.snapshot(stores.root / "copy"),),
    "pop_buffer": (_open_fresh(pop__buffer=True),),
}
"""By capability: calls that have no use but for it, and that would leave a trace if they did something before they are refused."""


@pytest.mark.parametrize("flag", FLAGS)
def test_s1_declared_is_offered_and_absent_is_refused(stores: Stores, flag: str) -> None:
    """S1: a call that needs a capability works when both engines declare it, and changes nothing when one does not."""
    store = stores.open()
    store.send(message(1, keys=(key_of("k"),)), delay_ms=5000)
    store.send(message(2))
    before, files = state_of(store), {path.name for path in stores.root.iterdir()}
    declared = [getattr(each, flag) for each in capabilities_of(stores.pair)]
    asked = {"cancel_by_key": declared[:1]}.get(flag, declared if flag in ("read_only_open", "import_state", "snapshot") else declared[1:])
    if all(each is Support.FULL for each in asked):
        for call in CALLS[flag]:
            call(stores, store)
        return
    for call in CALLS[flag]:
        with pytest.raises(UnsupportedOperationError):
            call(stores, store)
    if flag in ("cancel_by_key", "fifo", "sql92_filter"):
        # Refused for what it is, also where it would have found nothing.
        with pytest.raises(UnsupportedOperationError):
            CALLS[flag][0](stores, stores.open("empty"))
        files.add("empty")
    assert state_of(store) == before
    assert {path.name for path in stores.root.iterdir()} == files
