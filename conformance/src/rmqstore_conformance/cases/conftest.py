"""The fixtures of the suite once more, nearer to its cases than those of the same names in the directory that a run is started from."""

from rmqstore_conformance.fixtures import durable_stores, engine_stores, seed, stores, target, tell

__all__ = ["durable_stores", "engine_stores", "seed", "stores", "target", "tell"]
