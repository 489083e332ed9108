"""Probes: whether an engine can do what it declares, and what it does not, asked of its own interface below the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rmqstore import Message, MessageBatch
from rmqstore.contract import Capabilities, EngineOptions, EngineSession, PopRequest, PopTxn, Support
from rmqstore.plugins import get_plugins
from rmqstore_conformance.stores import directory

_NOW_MS: Final = 1_700_000_000_000
_OPTIONS: Final = EngineOptions(store_tag=1, broker="probe")

FLAGS: Final = tuple(name for name, kind in Capabilities.__annotations__.items() if "Support" in str(kind))
"""The capabilities that are there or not."""


def _batch(**fields: Any) -> MessageBatch:
    return MessageBatch.of([Message("t", b"body", message_id="m1", properties={"n": "1"}, **fields)])


def _cancel_by_key(session: EngineSession, place: Path) -> bool:
    session.timers().put(_batch(keys=("k",), deliver_at_ms=_NOW_MS + 60_000), _NOW_MS)
    outcomes, _ = session.timers().cancel_keys("t", ["k"], _NOW_MS)
    return [[each.name for each in found] for found in outcomes] == [["CANCELLED"]]


def _popped(session: EngineSession, **asked: Any) -> bool:
    session.pops().apply(PopTxn(appends=_batch()), _NOW_MS)
    result, _ = session.pops().pop(PopRequest("t", "g", **asked), _NOW_MS)
    return len(result.messages) == 1


def _snapshot(session: EngineSession, place: Path) -> bool:
    session.snapshot(place / "copy")
    return any((place / "copy").iterdir())


_PROBES: Final[dict[str, Callable[[EngineSession, Path], bool]]] = {
    "cancel_by_key": _cancel_by_key,
    "fifo": lambda session, place: _popped(session, order=True),
    "sql92_filter": lambda session, place: _popped(session, filter="n BETWEEN 1 AND 2"),
    "snapshot": _snapshot,
}
"""What can be seen below the store; the rest shows only in the cases."""


def probe(engine: str) -> dict[str, bool]:
    """Return for each capability that can be probed whether the engine did it, in a store of its own that is thrown away."""
    return {flag: _did(engine, flag) for flag in _PROBES}


def _did(engine: str, flag: str) -> bool:
    with directory() as place:
        (home := place / "home").mkdir()
        session = get_plugins().load_engine(engine)[1].open(home, _OPTIONS)
        try:
            return _PROBES[flag](session, place)
        except Exception:
            # However it fails: the user does not get it.
            return False
        finally:
            session.close()


def contradictions(declared: Capabilities, probed: dict[str, bool]) -> tuple[list[str], list[str]]:
    """Return (declared and not there, there and not declared)."""
    missing = [flag for flag, did in probed.items() if not did and getattr(declared, flag) is Support.FULL]
    return missing, [flag for flag, did in probed.items() if did and getattr(declared, flag) is not Support.FULL]
