"""``bare``: the ``memory`` engine, declaring nothing that is optional, and refusing it. What it cannot pass is not core."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from rmqstore.contract import Capabilities, Durability, EngineInfo, PopRequest, Support, same_durability
from rmqstore.errors import UnsupportedOperationError
from rmqstore.hookspecs import hookimpl
from rmqstore_conformance.probing import FLAGS
from rmqstore_conformance.proving.planting import MEMORY, Planted, Pops, Timers

_TAGS: Final = re.compile(r"\*|[\w-]+( *\|\| *[\w-]+)*")


def _refuse(what: str) -> NoReturn:
    raise UnsupportedOperationError(f"engine 'bare' does not {what}")


class _NoState:
    def export_state(self, table: str, after: bytes | None, limit: int) -> NoReturn:
        _refuse("give its state")

    def import_state(self, tables: Sequence[Any], now_ms: int, marks: Sequence[bytes] = ()) -> NoReturn:
        _refuse("take a state")


class _BareTimers(_NoState, Timers):
    def cancel_keys(self, topic: str, keys: Sequence[str], now_ms: int) -> NoReturn:
        _refuse("cancel by key")


class _BarePops(_NoState, Pops):
    def pop(self, request: PopRequest, now_ms: int) -> Any:
        if request.order:
            _refuse("pop in order")
        if not _TAGS.fullmatch(request.filter.strip()):
            _refuse("take SQL92 filters")
        return super().pop(request, now_ms)


def bare() -> Planted:
    """Return the engine."""
    return Planted(MEMORY, _BareTimers, _BarePops)


CAPABILITIES = Capabilities(
    durability=same_durability(sync=Durability.NONE, asynchronous=Durability.NONE),
    **dict.fromkeys(FLAGS, Support.NOT_YET),  # type: ignore[arg-type]
)


@hookimpl
def rmqstore_engines() -> list[EngineInfo]:
    """Announce the engine."""
    return [EngineInfo(name="bare", capabilities=CAPABILITIES, factory=f"{__name__}:bare")]
