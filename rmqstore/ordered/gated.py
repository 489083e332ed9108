"""``GatedKV``: the part of an ``OrderedKV`` that its :class:`~rmqstore.ordered.gate.Gate` answers for."""

from __future__ import annotations

from rmqstore.ordered.gate import Gate
from rmqstore.ordered.kv import OrderedKV


class GatedKV(OrderedKV):
    """A database of one's own, with positions and a group commit."""

    _gate: Gate

    def sync(self, position: int | None = None) -> None:
        self._gate.sync(position)

    @property
    def position(self) -> int:
        return self._gate.position

    @property
    def durable_position(self) -> int:
        return self._gate.durable_position
