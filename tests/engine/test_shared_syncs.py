"""X3: threads that wait at once share one disk sync."""

from __future__ import annotations

import errno
import sys
import threading
from unittest.mock import patch

import pytest

from rmqstore.engine.kv.group_commit import CommittedKV
from rmqstore.errors import StoreFullError
from rmqstore_conformance.cases.test_threads import together
from rmqstore_conformance.stores import Pair, message, stores_of
from rmqstore_memory.kv import MemoryKV
from tests.pairs import DURABLE_PAIRS


@pytest.mark.clause("X3")
@pytest.mark.parametrize("pair", [pair for pair in DURABLE_PAIRS if pair.timers == pair.pops], ids=str)
def test_x3_concurrent_calls_share_disk_syncs(pair: Pair) -> None:
    """X3, §5.1: sixteen threads of single sends need far fewer disk syncs than sends; each is durable when it returns.

    They carry marks, so each is a call of the engine by itself.
    """
    with stores_of(pair) as stores:
        store = stores.open()
        store.send(message("first"))
        kv: CommittedKV = store.engine.pops._shared.kv  # type: ignore[attr-defined]
        original, syncs = kv._sync_to_disk, 0
        hold = threading.Event()

        def counted() -> int:
            nonlocal syncs
            syncs += 1
            if syncs == 1:
                hold.wait(10)
            return original()

        before = kv.position
        target = before + 16

        def work(number: int) -> None:
            if number == 16:
                # While the first sync is held up, all others queue behind it; then one sync serves them all.
                while kv.position < target:
                    hold.wait(0.001)
                hold.set()
                return
            store.send(message(number), marks=[b"%d" % number])

        with patch.object(kv, "_sync_to_disk", counted):
            together(work, 17)
        assert syncs <= 4, f"{syncs} disk syncs for 16 concurrent sends"
        assert kv.durable_position >= target


def test_what_is_durable_is_not_refused() -> None:
    """A caller that wakes late from the sync that covered its write must not get the failure of a later one: its call was done."""
    kv = MemoryKV("a database", 1)
    kv.position = 1
    kv.sync(1)
    kv.position = 2
    kv.refuse_full(OSError(errno.ENOSPC, "later"))
    kv.sync(1)
    with pytest.raises(StoreFullError):
        kv.sync(2)


def test_a_call_does_not_wait_for_the_sync_behind_its_own() -> None:
    """Else threads that send one a call wait for most syncs twice."""
    kv = MemoryKV("a database", 1)
    kv.position = 2
    returned = threading.Event()

    def follow() -> None:
        kv.sync(1)
        returned.set()

    follower = threading.Thread(target=follow)
    began: list[int] = []

    def to_disk() -> int:
        began.append(kv.position)
        if len(began) == 1:
            follower.start()
            until_in_sync(follower)
        else:
            # The leader begins another sync at once, while the follower of its first is on its way out.
            assert returned.wait(20)
        return began[-1]

    with patch.object(kv, "_sync_to_disk", to_disk):
        kv.sync(2)
        kv.position = 3
        kv.sync(3)
    follower.join(20)
    assert began == [2, 3]


def test_those_who_wait_for_an_interrupted_sync_lead_one_themselves() -> None:
    kv = MemoryKV("a database", 1)
    kv.position = 3
    # One is covered by the sync that is interrupted; one waits for the sync behind it, and one beside that one.
    waiting = [threading.Thread(target=kv.sync, args=(position,)) for position in (1, 4, 5)]
    began: list[int] = []

    def to_disk() -> int:
        began.append(kv.position)
        if len(began) == 1:
            kv.position = 5
            for each in waiting:
                each.start()
                until_in_sync(each)
            raise KeyboardInterrupt
        return began[-1]

    with patch.object(kv, "_sync_to_disk", to_disk):
        with pytest.raises(KeyboardInterrupt):
            kv.sync(3)
        for each in waiting:
            each.join(20)
    assert not any(each.is_alive() for each in waiting)
    assert (kv.durable_position, began[0]) == (5, 3)
    assert len(began) in (2, 3)


def until_in_sync(thread: threading.Thread) -> None:
    """Let other threads run until one is in a call of ``sync``."""
    pause = threading.Event()
    while (frame := sys._current_frames().get(thread.ident or 0)) is None or frame.f_code.co_name != "sync":
        pause.wait(0.001)
