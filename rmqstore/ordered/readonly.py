"""The two sides of a session that was opened for reading: the reads of the real ones, and a refusal for everything else (X1, S1)."""

from __future__ import annotations

from typing import Any, Never

from rmqstore.contract import TimerStore
from rmqstore.errors import UnsupportedOperationError
from rmqstore.ordered.pops import OrderedPops
from rmqstore.ordered.timers import OrderedTimers


def refuse(call: str) -> Never:
    """Refuse a call that would change the store.

    Raises:
        UnsupportedOperationError: always; it names the call.
    """
    raise UnsupportedOperationError(f"{call} changes the store, which is open for reading here; its owner can do it")


class ReadingTimers(TimerStore):
    """Put before a timer side, it leaves only the reads of that one."""

    def import_state(self, *_: Any, **__: Any) -> Never:
        refuse("import_state")

    def recover(self, *_: Any) -> Never:
        refuse("recover")

    def put(self, *_: Any, **__: Any) -> Never:
        refuse("put")

    def cancel(self, *_: Any, **__: Any) -> Never:
        refuse("cancel")

    def cancel_key(self, *_: Any, **__: Any) -> Never:
        refuse("cancel_key")

    def seal(self, *_: Any, **__: Any) -> Never:
        refuse("seal")

    def forget(self, *_: Any, **__: Any) -> Never:
        refuse("forget")

    def maintain(self, *_: Any, **__: Any) -> Never:
        refuse("maintain")


class ReadOnlyTimers(ReadingTimers, OrderedTimers):
    """Timers of one view."""


class ReadOnlyPops(OrderedPops):
    """Queues and leases of one view."""

    def import_state(self, *_: Any, **__: Any) -> Never:
        refuse("import_state")

    def apply(self, *_: Any, **__: Any) -> Never:
        refuse("apply")

    def pop(self, *_: Any, **__: Any) -> Never:
        refuse("pop")

    def revive(self, *_: Any, **__: Any) -> Never:
        refuse("revive")

    def create_topic(self, *_: Any, **__: Any) -> Never:
        refuse("create_topic")

    def reset_offset(self, *_: Any, **__: Any) -> Never:
        refuse("reset_offset")

    def maintain(self, *_: Any, **__: Any) -> Never:
        refuse("maintain")

    def set_group(self, *_: Any, **__: Any) -> Never:
        refuse("set_group")

    def delete_topic(self, *_: Any, **__: Any) -> Never:
        refuse("delete_topic")

    def delete_group(self, *_: Any, **__: Any) -> Never:
        refuse("delete_group")
