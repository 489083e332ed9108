"""The engines, and the pairs of them, that the tests of this repository run on."""

from __future__ import annotations

from rmqstore_conformance.stores import Pair, installed

ENGINES = [name for name in ("memory", "wheel", "rocksdb", "lmdb") if name in installed()]
MIXED = [
    pair
    for pair in (Pair("rocksdb", "lmdb"), Pair("lmdb", "rocksdb"), Pair("wheel", "lmdb"), Pair("rocksdb", "wheel"))
    if set(pair) <= set(ENGINES)
]
PAIRS = [*(Pair(name, name) for name in ENGINES), *MIXED]
DURABLE_PAIRS = [pair for pair in PAIRS if pair.durable]
