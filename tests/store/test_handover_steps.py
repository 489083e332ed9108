"""A hand-over of many batches: how large they are when others call, and that what is left of a tick is not looked at again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import ManualClock, Message, MessageBatch, Store
from rmqstore.contract import PopTxn
from tests.pairs import ENGINES

MANY = MessageBatch.of([Message("t", b"x", queue_id=0)] * 2000)


def batches(store: Store, monkeypatch: pytest.MonkeyPatch, *, called_behind: int) -> list[int]:
    """Return how many messages each step of a tick has; behind one of them somebody calls the store."""
    apply, sizes = store.engine.pops.apply, list[int]()

    def noted(txn: PopTxn, now_ms: int) -> Any:
        sizes.append(len(txn.appends or ()))
        if len(sizes) == called_behind:
            store.pending()
        return apply(txn, now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(store.engine.pops, "apply", noted)
        store.tick()
    return sizes


def test_a_tick_in_which_others_call_goes_in_small_steps_for_a_while(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(1_800_000_000_000)
    with rmqstore.open(tmp_path / "s", engine=engine, clock=clock, services=False, hand_over_limit=1500) as store:
        quiet = [*[1500] * 6, 1000]
        for called_behind, expected in ((0, quiet), (2, [1500, 1500, *[512] * 8, 1500, 1404]), (0, quiet)):
            for _ in range(5):
                store.send_batch(MANY.columns, delay_ms=1000)
            clock.advance(1000)
            assert batches(store, monkeypatch, called_behind=called_behind) == expected
            store._in_steps.add(1)  # as a pop whose filter passes over very many, beside the second tick
            assert store.verify() == []


@pytest.mark.parametrize("engine", [each for each in ENGINES if each != "wheel"])
def test_what_is_left_of_a_tick_is_not_read_at_each_step(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another call may make each step durable; what that lets the timers forget is what was handed over, and not looked for in the rest.

    Nor are the cancelled ones of the rest.
    """
    clock = ManualClock(1_800_000_000_000)
    with rmqstore.open(tmp_path / "s", engine=engine, clock=clock, services=False, hand_over_limit=500) as store:
        for _ in range(20):
            sent = store.send_batch(MANY.columns, delay_ms=1000)
            store.cancel(sent[::10])
        clock.advance(1000)
        kv = store.engine.timers._shared.kv  # type: ignore[attr-defined]
        scan, read, entries = kv.scan, [0], [0]

        def counted(*arguments: Any, **named: Any) -> Any:
            page = scan(*arguments, **named)
            read[0] += sum(len(value) for _, value in page)
            entries[0] += len(page)
            return page

        monkeypatch.setattr(kv, "scan", counted)
        stored_bytes = sum(len(value) for _, value in kv.scan_all(1, b"", None))
        read[0] = entries[0] = 0
        for step in store._hand_over.steps(clock.now_ms()):
            if isinstance(step, tuple):
                store.engine.pops.sync(step[1])
        assert store.pending().total == 0
        assert read[0] < 8 * stored_bytes
        assert entries[0] < 8 * 4000, "of 4000 that were cancelled"


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_timers_that_are_handed_over_are_let_go_of(tmp_path: Path, engine: str, flush: str) -> None:
    """Under flush = async that can be known only behind the tick that has handed them over."""
    clock = ManualClock(1_800_000_000_000)
    with rmqstore.open(tmp_path / "s", engine=engine, clock=clock, services=False, flush=flush) as store:
        store.send_batch(MANY.columns, delay_ms=1000)
        clock.advance(1000)
        store.tick()
        store.flush()
        store.tick()
        assert store.engine.timers.pending().total == 0
