"""Makes calls of a store, and notes what is imported meanwhile that takes long, and where: run by ``test_imports_under_locks``.

Arguments: engine of the timers, engine of the pops, what is sent ("rows", "lists" or "columns"), when it is due ("now", "later").
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import rmqstore
from rmqstore import ManualClock, Message, MessageBatch, Store

COUNT = 300
found: list[list[str]] = []


class Watch:
    """Notes each import of a module that takes long, and which engine's lock is held then; finds nothing itself."""

    def __init__(self, store: Store) -> None:
        self._sides: list[Any] = [store.engine.timers, store.engine.pops]

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name in ("numpy", "pyarrow", "pandas"):
            held = any(side._shared.lock._is_owned() for side in self._sides)
            frames = [frame.name for frame in traceback.extract_stack() if "rmqstore" in frame.filename]
            found.append([name, "held" if held else "free", " < ".join(reversed(frames[-6:]))])
        return None


def send(store: Store, kind: str, columns: bytes, delay_ms: int) -> None:
    messages = [
        Message("t", b"x", tag="a" if number % 3 else None, keys=("k",) * (number % 2), properties={"p": "v"} if number % 5 else {})
        for number in range(COUNT)
    ]
    if kind == "rows":
        for message in messages:
            store.send(message, delay_ms=delay_ms)
    elif kind == "lists":
        store.send_batch(messages, delay_ms=delay_ms)
    else:
        import pyarrow as pa

        # As they come to a server.
        store.send_batch(MessageBatch(columns=pa.ipc.open_stream(columns).read_next_batch()), delay_ms=delay_ms)


def main(timers: str, pops: str, kind: str, due: str) -> None:
    clock = ManualClock(1_700_000_000_000)
    columns = sys.stdin.buffer.read()
    delay_ms = 1000 if due == "later" else 0
    with (
        tempfile.TemporaryDirectory() as path,
        rmqstore.open(Path(path, "s"), timer_engine=timers, pop_engine=pops, clock=clock, services=False) as store,
    ):
        watch: Any = Watch(store)
        sys.meta_path.insert(0, watch)
        send(store, kind, columns, delay_ms)
        later = [store.send(Message("t", b"y", keys=(f"{number}",)), delay_ms=3_600_000) for number in range(2)]
        store.cancel(later[0])
        store.cancel_key("t", "1")
        clock.advance(5000)
        store.tick()
        store.ack(store.pop("t", "g", max_messages=COUNT // 3))
        popped = store.pop_batch("t", "g", max_messages=COUNT // 3, invisible_ms=1000)
        assert len(popped) == COUNT // 3
        clock.advance(5000)
        store.tick()
        again = store.pop_batch("t", "g", max_messages=COUNT)
        assert len(again) == COUNT - COUNT // 3
        store.ack(again)
        store.tick()
        sys.meta_path.remove(watch)
    print(json.dumps({"found": found, "pandas": "pandas" in sys.modules}))


if __name__ == "__main__":
    main(*sys.argv[1:])
