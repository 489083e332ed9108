"""F1, F2: what a database that keeps writes back tells of answered calls that a full disk took: all of them, once, and of no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest.mock import patch

import pytest

from rmqstore import MessageBatch
from rmqstore.contract import EngineOptions, Flush, PopRequest, PopStore, Ticket
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.kv.buffered import BufferedKV
from rmqstore.engine.schema import SPACES
from rmqstore.engine.session import open_session
from rmqstore.errors import LostCallsError, StoreFullError, StorePoisonedError
from rmqstore_conformance.stores import START_MS, plain
from tests.engine.databases import FakeBase


class Opened(NamedTuple):
    """The pop side of a session over a database that commits when it is told to."""

    base: FakeBase
    kv: BufferedKV
    pops: PopStore

    def send(self, *tags: str) -> Ticket:
        """Append messages; nobody waits for that."""
        return self.pops.append(MessageBatch.of([plain(tag, "t", tag=tag, queue_id=0) for tag in tags]), START_MS)[1]

    def pop(self, filter: str = "*") -> tuple[int, Ticket]:
        """Pop one message; nobody waits for that."""
        result, ticket = self.pops.pop(PopRequest("t", "g", 1, filter=filter), START_MS)
        return len(result.messages), ticket

    def fail(self) -> None:
        """Wait for a message that finds no room."""
        ticket = self.send("f")
        with pytest.raises(StoreFullError):
            self.pops.sync(ticket)

    def lose_a_lease(self) -> None:
        """Have a lease that was answered, and is not durable, taken by a full disk, which then has room again."""
        _lease(self)
        self.base.fill()
        self.fail()
        self.base.free()

    def told(self) -> bool:
        """Say whether the next call says that calls are lost."""
        try:
            self.pops.lag("t", "g")
        except LostCallsError:
            return True
        return False


def _opened(**options: Flush) -> Opened:
    base = FakeBase()
    kv = BufferedKV(base, len(SPACES))
    pops = open_session(kv, EngineOptions(store_tag=1, broker="b", **options)).pops()
    opened = Opened(base, kv, pops)
    opened.send("a", "b", "c", "d")
    opened.pop()
    pops.sync()
    return opened


def _lease(opened: Opened) -> None:
    found, ticket = opened.pop()
    assert found
    opened.pops.sync(ticket)


def _flushed_lease(opened: Opened) -> None:
    _lease(opened)
    opened.pops.sync()


def _lease_of_what_is_not_durable(opened: Opened) -> None:
    opened.send("e")
    opened.base.fill()
    _, ticket = opened.pop()
    with pytest.raises(StoreFullError):
        opened.pops.sync(ticket)


def _offset_that_moves(opened: Opened) -> None:
    found, ticket = opened.pop("none")
    assert not found
    opened.pops.sync(ticket)


@pytest.mark.parametrize("flush", [{"pop_flush": Flush.ASYNC}, {"flush": Flush.ASYNC}, {}], ids=["pop.flush", "flush", "sync"])
@pytest.mark.parametrize(
    ("calls", "is_lost"),
    [
        ([_lease], True),
        ([_lease, _lease], True),
        ([_lease, _lease_of_what_is_not_durable], True),
        ([_lease_of_what_is_not_durable], False),
        ([_flushed_lease], False),
        ([_offset_that_moves], False),
        ([], False),
    ],
    ids=lambda value: " ".join(each.__name__ for each in value) if isinstance(value, list) else "",
)
def test_what_is_told_is_that_answered_calls_are_gone(
    calls: Sequence[Callable[[Opened], None]], is_lost: bool, flush: dict[str, Flush]
) -> None:
    opened = _opened(**flush)
    for call in calls:
        call(opened)
    opened.base.fill()
    if opened.kv.refusal is None:
        opened.fail()
    opened.base.free()
    if flush.get("pop_flush") is Flush.ASYNC:
        assert opened.told() == is_lost
    elif not flush:
        assert not opened.told()
    else:
        # The send of ``fail`` is among the answered calls here, as nobody has to wait for one.
        assert opened.told()
    assert not opened.told(), "told twice"
    assert opened.send("g").position


def test_no_receipt_of_a_pop_that_found_no_room_is_given_again() -> None:
    """P2: its lease may have been listed, with the receipt, before the disk was heard."""
    opened = _opened()
    opened.base.fill()
    _, ticket = opened.pop()
    listed = {each.receipt for each in opened.pops.leases("t", "g")}
    with pytest.raises(StoreFullError):
        opened.pops.sync(ticket)
    opened.base.free()
    (again,) = opened.pops.pop(PopRequest("t", "g", 1), START_MS)[0].messages.messages()
    assert len(listed) == 2
    assert again.receipt not in listed


def test_a_full_disk_behind_an_interrupt_is_got_over() -> None:
    """F1, F4: what the interrupted call wrote finds no room; once there is some, calls succeed."""
    opened = _opened()
    write = opened.kv.write

    def interrupted(batch: WriteBatch) -> int:
        write(batch)
        raise KeyboardInterrupt

    with patch.object(opened.kv, "write", interrupted), pytest.raises(KeyboardInterrupt):
        opened.send("h")
    opened.base.fill()
    with pytest.raises(StoreFullError):
        opened.pops.lag("t", "g")
    opened.base.free()
    opened.pops.sync(opened.send("i"))
    assert opened.pops.lag("t", "g").ready == 4


@pytest.mark.parametrize("is_closed", [False, True], ids=["call", "close"])
def test_what_was_being_told_is_told_after_an_interrupt(is_closed: bool) -> None:
    opened = _opened(pop_flush=Flush.ASYNC)
    opened.lose_a_lease()
    with patch.object(opened.kv, "sync", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        opened.pops.lag("t", "g")
    if is_closed:
        with pytest.raises(LostCallsError):
            opened.pops.close()
        assert opened.base.closed == 1
    else:
        assert opened.told()
        assert not opened.told()


def test_a_sync_that_fails_while_it_is_told_poisons() -> None:
    opened = _opened(pop_flush=Flush.ASYNC)
    opened.lose_a_lease()

    def fail(_: int) -> None:
        raise opened.kv.refuse_poisoned(OSError("the disk failed"), "a disk sync")

    with patch.object(opened.kv, "sync", fail), pytest.raises(StorePoisonedError):
        opened.pops.lag("t", "g")
    for call in (lambda: opened.pops.lag("t", "g"), opened.pop, lambda: opened.send("g")):
        with pytest.raises(StorePoisonedError):
            call()


def test_a_close_opens_nothing_again_for_leases_that_are_durable() -> None:
    opened = _opened(pop_flush=Flush.ASYNC)
    _flushed_lease(opened)
    opened.base.fill()
    opened.fail()
    opened.pops.close()
    assert (opened.base.reopened, opened.base.closed) == (0, 1)
