"""S1: what an engine does not declare is refused, also when the code below could do it."""

from __future__ import annotations

import msgspec
import pytest

from rmqstore import UnsupportedOperationError
from rmqstore.contract import Support
from rmqstore.plugins import get_plugins
from rmqstore_conformance.stores import Stores, message, state_of


@pytest.mark.clause("S1")
def test_s1_absent_capabilities_are_refused_without_effect(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: FIFO pop, SQL92 filter, retention, a snapshot, where not declared: UnsupportedOperationError, and nothing has changed."""
    store = stores.open()
    store.send(message(1))
    capabilities = [get_plugins().load_engine(name)[0].capabilities for name in stores.pair]
    before = state_of(store)
    poorer = msgspec.structs.replace(capabilities[1], fifo=Support.NOT_YET, sql92_filter=Support.NOT_YET, retention=Support.NOT_YET)
    info = msgspec.structs.replace(store.engine.infos[stores.pair.pops], capabilities=poorer)
    with monkeypatch.context() as patch:
        patch.setitem(store.engine.infos, stores.pair.pops, info)
        for call in (
            lambda: store.pop("t", "g", order=True),
            lambda: store.pop("fresh", "g2", order=True),
            lambda: store.pop("fresh", "g3", filter="price > 10"),
        ):
            with pytest.raises(UnsupportedOperationError):
                call()
    with monkeypatch.context() as patch:
        plugins = get_plugins()
        offers = [(info if offered.name == info.name else offered, source) for offered, source in plugins._offers]
        patch.setattr(plugins, "_offers", offers)
        for setting in ({"retention_ms": 1000}, {"reclaim": "consumed"}):
            with pytest.raises(UnsupportedOperationError):
                stores.open("fresh", **setting)
        assert not (stores.root / "fresh").exists()
    if any(each.snapshot.value == "impossible" for each in capabilities):
        with pytest.raises(UnsupportedOperationError):
            store.snapshot(stores.root / "copy")
        assert not (stores.root / "copy").exists()
    assert state_of(store) == before
    assert NotImplementedError in UnsupportedOperationError.__mro__
