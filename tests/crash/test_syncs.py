"""Disk syncs of each public call under ``flush = sync`` (design §5): counted by strace, not believed.

LMDB writes its meta page through a descriptor that is opened with O_DSYNC, which is a second wait for the disk in a commit; it is no sync
call and is not counted here.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import rmqstore
from rmqstore import ManualClock, Message
from rmqstore_conformance.power.tracing import MARKS, SYNCS, read_trace, strings_of, traced, unusable

ONE = (
    """
send; send later; send_batch; send_batch columns; send_batch later; send_batch now and later; send to a new topic; cancel; cancel many; \
cancel_key; pop; pop_batch; pop short; ack; ack many; ack batch; change; release; tick revives
""".replace("\n", " ")
    .strip()
    .split("; ")
)
TICKS = ["tick moves", "tick moves in many batches", "tick moves and revives"]
NONE = ["tick idle", "tick idle again", "pop empty", "forget", "reads", "flush with nothing to do"]

pytestmark = pytest.mark.crash


def count_syncs(trace: Path) -> Counter[str]:
    """Count the syncs, of all threads, within each marked call; calls without any are there, too."""
    found: Counter[str] = Counter()
    inside = ""
    for call in read_trace(trace):
        if call.name in SYNCS:
            found[inside] += bool(inside)
        elif (texts := strings_of(call.arguments)) and texts[0].startswith((b"/rmqs-begin/", b"/rmqs-end/")):
            _, kind, name = texts[0].decode().split("/")
            inside = name if kind == "rmqs-begin" else ""
            found[name] += 0
    del found[""]
    return found


@pytest.mark.parametrize(
    ("timer_engine", "pop_engine"),
    [("wheel", "wheel"), ("lmdb", "lmdb"), ("rocksdb", "rocksdb"), ("rocksdb", "lmdb"), ("lmdb", "rocksdb"), ("wheel", "lmdb")],
)
def test_syncs_of_each_call(tmp_path: Path, timer_engine: str, pop_engine: str) -> None:
    if reason := unusable():
        pytest.skip(reason)
    missing = [name for name in (timer_engine, pop_engine) if find_spec(f"rmqstore_{name}") is None]
    if missing:
        pytest.skip(f"not installed: {missing}")
    output = tmp_path / "trace"
    script = Path(__file__).with_name("syncing.py")
    command = [sys.executable, str(script), str(tmp_path / "store"), timer_engine, pop_engine]
    run = subprocess.run(traced(command, [*SYNCS, *MARKS], output, []), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    counts = count_syncs(output)
    assert counts.keys() == {*ONE, *TICKS, *NONE}
    assert {name: counts[name] for name in NONE} == dict.fromkeys(NONE, 0)
    assert {name: counts[name] for name in ONE} == dict.fromkeys(ONE, 1)
    most = 1 if timer_engine == pop_engine else 2
    assert {name: counts[name] for name in TICKS if not 1 <= counts[name] <= most} == {}, f"at most {most} syncs a tick"


@pytest.mark.parametrize("engine", ["wheel", "lmdb", "rocksdb"])
def test_with_pops_that_do_not_wait_only_what_does_no_more_than_lease_is_not_durable(tmp_path: Path, engine: str) -> None:
    if find_spec(f"rmqstore_{engine}") is None:
        pytest.skip(f"rmqstore-{engine} is not installed")
    clock = ManualClock(10**12)
    settings = {"engine": engine, "pop__flush": "async", "group_expiry_ms": 8000}
    with rmqstore.open(tmp_path / "store", clock=clock, services=False, **settings) as store:
        store.send_batch([Message("t", b"x") for _ in range(8)])

        def moves(call: Callable[[], object]) -> bool:
            """Say whether more is durable after a call than before."""
            before = store.engine.pops.durable_position
            call()
            return store.engine.pops.durable_position > before

        held = []
        assert moves(lambda: held.append(store.pop("t", "g", max_messages=1))), "the first pop of a group says where it starts"
        assert not moves(lambda: held.append(store.pop("t", "g", max_messages=1)))
        assert not moves(lambda: held.append(store.pop("t", "g", max_messages=1, filter="*", wait_ms=0)))
        assert moves(lambda: held.append(store.pop("t", "g", max_messages=1, acks=held.pop())))
        assert moves(lambda: store.ack(held.pop()))
        clock.advance(1000)
        assert moves(lambda: store.pop("t", "g", max_messages=1)), "what the group has not popped is held back for so much longer"
        assert not moves(lambda: store.pop("t", "g", max_messages=1))
        assert not moves(lambda: store.pop("t", "g", max_messages=1))
        assert moves(store.flush)
