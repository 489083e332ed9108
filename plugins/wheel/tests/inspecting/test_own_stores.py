"""Nothing is wrong with a store that rmqstore wrote, while it is open and when it was closed, unless its log is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

import rmqstore
from plugins.wheel.tests.power.builds import make_small
from rmqstore import ManualClock, Message, Store
from rmqstore_conformance.stores import START_MS
from rmqstore_wheel.inspecting import inspect
from rmqstore_wheel.log.ledger import Sizes

SLOTS = 256
SMALL = Sizes(16 * 1024, 64, 64, slice_bytes=32 * 1024, check_point_bytes=32 * 1024, check_point_calls=40, index_slots=64, index_entries=64)


@pytest.mark.parametrize("seed", range(3))
def test_any_history_leaves_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Slots are cancelled to nothing and used again, timers rolled and copied, files of the log and of the timer log given back."""
    make_small(monkeypatch, SMALL, slots=SLOTS, roll_window=64, again_ms=5_000)
    rng, clock = Random(seed), ManualClock(START_MS)
    handles: list[str] = []

    def opened() -> Store:
        return rmqstore.open(
            tmp_path / "store", engine="wheel", services=False, clock=clock, reclaim="consumed", cancel_memory_ms=5_000, group_expiry_ms=0
        )

    def damage() -> tuple[object, ...]:
        found = inspect(tmp_path / "store" / "wheel")
        assert found is not None
        return found.damage

    store = opened()
    for step in range(200):
        match rng.choice("ssssscccctx"):
            case "s":
                wait_s = rng.choice((2, 30, 40, 40, 40, 60, 150, 200))
                rows = [Message("t", b"x" * 300, deliver_at_ms=clock.now_ms() + wait_s * 1000) for _ in range(rng.choice((1, 1, 4)))]
                handles += [each.handle for each in store.send_batch(rows) if each.handle]
            case "c":
                taken = [handles.pop(rng.randrange(len(handles))) for _ in range(min(len(handles), rng.choice((1, 3, 10))))]
                store.cancel(taken)
            case "t":
                clock.advance(rng.choice((500, 1000, 7_000, 20_000)))
                store.tick()
                store.ack(store.pop("t", "g", max_messages=32))
            case _:
                if rng.random() < 0.2:
                    store.close()
                    assert damage() == (), (step, "closed")
                    store = opened()
        if step % 10 == 0:
            assert damage() == (), step
    store.close()
    assert damage() == ()


def test_a_store_without_its_log_is_damaged(tmp_path: Path) -> None:
    with rmqstore.open(tmp_path / "store", engine="wheel", services=False, clock=ManualClock(START_MS)) as store:
        store.send(Message("t", b"x"))
    shutil.rmtree(tmp_path / "store" / "wheel" / "db" / "commitlog")
    found = inspect(tmp_path / "store" / "wheel")
    assert found is not None
    assert [each.file for each in found.damage] == ["db/commitlog"]
