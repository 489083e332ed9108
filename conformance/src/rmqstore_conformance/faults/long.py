"""A script of messages whose properties are longer than a sector, each by some bytes longer than the one before.

So the end of one or the other, which says that it is whole, stands on both sides of a border of sectors.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from rmqstore import ManualClock, Message, Store
from rmqstore_conformance.faults.script import Notes, Script, messages_of

COUNT: Final = 32
_STEP_BYTES: Final = 23


class Long(Script):
    """Sends, one a call, for now and for later in turns."""

    name: ClassVar[str] = "long"

    def __init__(self, store: Store, clock: ManualClock, notes: Notes | None = None) -> None:
        super().__init__(store, clock, notes)
        for number in range(COUNT):
            (plain,) = messages_of(f"{number}-", 1, "long", due_ms=(50_000 if number % 2 else None,))
            self._send(f"send {number}", msgspec.structs.replace(plain, properties={"long": "v" * (1_000 + _STEP_BYTES * number)}))

    def _send(self, name: str, message: Message) -> None:
        self.add(name, "send", lambda: self.sent(name, [self.store.send(message)]))
