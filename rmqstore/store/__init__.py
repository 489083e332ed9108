"""An open store: one directory in which messages wait for their time and for their consumers."""

from rmqstore.store.reader import Reader, ReadStore, StoreStats
from rmqstore.store.store import Store, open  # noqa: A004 - a store opens like a file

__all__ = ["ReadStore", "Reader", "Store", "StoreStats", "open"]
