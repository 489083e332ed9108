"""Damage behind a store's back: bytes of a stored message change on their way to the disk and back.

Of a key-ordered database it is the run with the message that changes. An engine that keeps messages in files as they are has the bytes of
the body changed there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rmqstore import Store
from rmqstore.engine.kv.base import OrderedKV, WriteBatch
from rmqstore.engine.pops.kv_queue_log import RunQueueLog
from rmqstore.engine.schema import FORMAT_KEY, META, QUEUES, TIMERS
from rmqstore.engine.timers.store import OrderedTimers

Spoiling = Callable[[bytes], bytes]


def flipped(data: bytes) -> bytes:
    """Change the bits of one byte near the end."""
    at = max(len(data) - 3, 0)
    return data[:at] + bytes((data[at] ^ 0xFF,)) + data[at + 1 :]


def cut(keep: int) -> Spoiling:
    """Return what keeps the first ``keep`` bytes."""
    return lambda data: data[:keep]


def damage_timers(store: Store, *bodies: bytes, spoil: Spoiling = flipped) -> int:
    """Damage the timers with these bodies; returns how many pieces were damaged: timers that are stored as one are damaged as one."""
    kv = store.engine.timers._shared.kv  # type: ignore[attr-defined]
    if isinstance(store.engine.timers, OrderedTimers):
        return _damage_runs(kv, TIMERS, bodies, spoil)
    return _damage_files(store, store.stats().timer_engine, bodies, spoil)


def damage_timer_near(store: Store, body: bytes, step: int) -> bool:
    """Change the byte that is so many bytes from the beginning of a timer's body; False when none is there that belongs to a timer."""
    if not isinstance(store.engine.timers, OrderedTimers):
        path, at = _place_in_files(store, store.stats().timer_engine, body)
        with path.open("r+b") as file:
            if at + step < 0:
                return False
            file.seek(at + step)
            byte = file.read(1)
            file.seek(at + step)
            file.write(_turned(byte))
        return True
    kv = store.engine.timers._shared.kv
    key, value = max((key, value) for key, value in kv.scan_all(TIMERS) if body in value)
    at = value.index(body) + step
    if not 0 <= at < len(value):
        return False
    write = WriteBatch()
    write.put(TIMERS, key, value[:at] + _turned(value[at : at + 1]) + value[at + 1 :])
    kv.sync(kv.write(write))
    return True


def _turned(byte: bytes) -> bytes:
    """Change one bit of a byte; a small number stays small, so that it may be another one of its kind."""
    return bytes((byte[0] ^ 0x02,))


def damage_messages(store: Store, *bodies: bytes, spoil: Spoiling = flipped) -> int:
    """Damage the messages of queues that hold these bytes last; see :func:`damage_timers`."""
    log = store.engine.pops._log  # type: ignore[attr-defined]
    if isinstance(log, RunQueueLog):
        damaged = _damage_runs(store.engine.pops._shared.kv, QUEUES, bodies, spoil)  # type: ignore[attr-defined]
    else:
        damaged = _damage_files(store, store.stats().pop_engine, bodies, spoil)
    log._recent.clear()
    return damaged


def renumber_records(store: Store) -> bool:
    """Say in a key-ordered database that its records have another version; False where the engine has none."""
    if not isinstance(store.engine.timers, OrderedTimers):
        return False
    for side in (store.engine.timers, store.engine.pops):
        kv = side._shared.kv  # type: ignore[union-attr]
        write = WriteBatch()
        write.put(META, FORMAT_KEY, bytes((99,)))
        kv.sync(kv.write(write))
    return True


def _damage_runs(kv: OrderedKV, space: int, bodies: tuple[bytes, ...], spoil: Spoiling) -> int:
    entries = dict(kv.scan_all(space))
    write = WriteBatch()
    keys = {max((key for key, value in entries.items() if body in value)) for body in bodies}
    for key in keys:
        write.put(space, key, spoil(entries[key]))
    kv.sync(kv.write(write))
    return len(keys)


def _damage_files(store: Store, engine: str, bodies: tuple[bytes, ...], spoil: Spoiling) -> int:
    """Change the last place of each body in the files of an engine, in place; what is cut off becomes zeros."""
    for body in bodies:
        path, at = _place_in_files(store, engine, body)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(spoil(body).ljust(len(body), b"\0"))
    return len(bodies)


def _place_in_files(store: Store, engine: str, body: bytes) -> tuple[Path, int]:
    """Return the file of an engine that has a body furthest behind, and where."""
    files = (Path(store.stats().path) / engine).rglob("*")
    return max((found for file in files if (found := _last_place(file, body))), key=lambda found: found[1])


def _last_place(path: Path, body: bytes) -> tuple[Path, int] | None:
    if not path.is_file() or path.stat().st_blocks == 0:
        return None
    with path.open("rb") as file:
        # A log is set aside ahead of its end, and a hole behind that.
        at = file.read(16 * 1024 * 1024).rfind(body)
    return (path, at) if at >= 0 else None
