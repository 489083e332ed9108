"""R4: the versions that engines of our own write."""

from __future__ import annotations

import pytest

from rmqstore import FormatVersionError
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.schema import FORMAT_KEY, META
from rmqstore_conformance.stores import Pair, stores_of
from tests.pairs import DURABLE_PAIRS


@pytest.mark.clause("R4")
@pytest.mark.parametrize("pair", [pair for pair in DURABLE_PAIRS if pair.timers == pair.pops], ids=str)
def test_r4_a_newer_engine_format_is_refused(pair: Pair) -> None:
    """R4: the version of the database directory, and that of the records in it."""
    with stores_of(pair) as stores:
        store = stores.open()
        kv: OrderedKV = store.engine.timers._shared.kv  # type: ignore[attr-defined]
        write = WriteBatch()
        write.put(META, FORMAT_KEY, b"\x7f")
        kv.sync(kv.write(write))
        store.close()
        with pytest.raises(FormatVersionError):
            stores.open()
        stores.open("other").close()
        (mark,) = (stores.root / "other").glob("*/db/FORMAT")
        name, engine, version = mark.read_text().split()
        mark.write_text(f"{name} {engine} {int(version) + 1}\n")
        with pytest.raises(FormatVersionError):
            stores.open("other")
