"""The phases that need a process of their own: the open after ``kill -9``, and the drain with little memory.

That process is ``python -m rmqstore_benchmarks.grid.aside``, which is given a pickled call and gives what it returns. A control group of
its own, version 2 or 1, limits its memory, page cache included. The group is made below the one that this process is in, and goes when it
is empty; nothing else is changed.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import rmqstore
from rmqstore_benchmarks.grid.calls import Calls, are
from rmqstore_benchmarks.grid.load import Ids, Load, Made, ticks_of
from rmqstore_benchmarks.grid.named import workload_named
from rmqstore_benchmarks.grid.phases import next_step_ms
from rmqstore_benchmarks.grid.recording import Phase, Tables, measured, sync_files
from rmqstore_benchmarks.grid.stores import ShardTask, open_store

if TYPE_CHECKING:
    from rmqstore_benchmarks.grid.shard import _Shard

_TAIL_MESSAGES: Final = 20_000
_TAIL_BYTES: Final = 64 * 1024 * 1024
_CHILD_PATIENCE_S: Final = 300.0
_STEPS: Final = 256
_NO_MEMORY: Final = ("MemoryError", "Cannot allocate memory", "std::bad_alloc")


def recover(shard: _Shard) -> None:
    """Let a child add timers and be killed; then time the open, and compare what is there with what was acknowledged."""
    calls, load = shard.calls, shard.load
    count = max(min(_TAIL_MESSAGES, _TAIL_BYTES // load.message_bytes), 1)
    ended = _child(partial(die, shard.task, shard.clock.now_ms(), load.made, load.batches, count))
    if ended.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the child that was to be killed ended with {ended.returncode}: {ended.stderr.decode()[-500:]}")
    acknowledged = int(ended.stdout.split()[-1]) if ended.stdout.split() else 0
    for made in tail_batches(load, shard.clock.now_ms(), acknowledged):
        calls.account.make(made.ids, ticks_of(made.due_ms), 0)

    def open_again(_: object) -> int:
        calls.store = open_store(shard.task, shard.clock)
        return calls.pending

    shard.measured("recover", open_again)
    try:
        held = calls.held()
    finally:
        calls.store.close()
    # The call in which the child died may have been stored; it was never acknowledged, so both is right.
    calls.account.settle(held[held < calls.account.made], shard.clock.now_ms())
    if unacknowledged := int((held >= calls.account.made).sum()):
        shard.notes.append(f"{unacknowledged} timers of the call that the kill cut short were stored")


def cold_drain(shard: _Shard) -> None:
    """Drop the store's files from the page cache, and let a child with little memory hand over everything, then pop and ack it."""
    calls = shard.calls
    expected = calls.account.open_ids()
    backlog_bytes = len(expected) * shard.load.message_bytes
    limit = limit_for(backlog_bytes)
    sync_files(shard.directory, forget=True)
    try:
        with limited_group(shard.task.directory, limit) as group:
            ended = _child(partial(drain, shard.task, shard.clock.now_ms(), len(expected), limit), group)
    except NoLimitError as error:
        shard.notes.append(f"cold_drain was not run: {error}")
        return
    except subprocess.TimeoutExpired:
        shard.notes.append(f"cold_drain was not done after {_CHILD_PATIENCE_S:.0f} s in {limit:,} bytes of memory")
        return
    if ended.returncode or not ended.stdout:
        said = ended.stderr.decode(errors="replace")
        failure = f"cold_drain ended with {ended.returncode} in {limit:,} bytes of memory: {said.strip()[-300:]}"
        # Killed by the kernel, or refused an allocation: that says nothing of the engine.
        if ended.returncode == -signal.SIGKILL or any(words in said for words in _NO_MEMORY):
            shard.notes.append(failure)
        else:
            calls.account.fail(failure)
        return
    parts, popped, acked = pickle.loads(ended.stdout)
    calls.note_pops(*popped.T)
    calls.account.ack(acked)
    calls.account.settle(np.zeros(0, np.int64), shard.clock.now_ms())
    shard.parts += parts
    if limit == FLOOR_BYTES:
        shard.notes.append(f"cold_drain: a quarter of {backlog_bytes:,} bytes is less than a process needs, so it had {limit:,} bytes")


def load_of(task: ShardTask) -> Load:
    """Return the load of a shard, of which nothing is made yet."""
    return Load(workload_named(task.cell.workload), task.cell.body_bytes, task.run.seed, task.shard)


def tail_batches(load: Load, now_ms: int, count: int) -> Iterator[Made]:
    """Yield ``count`` timers in the batches that the child sends: the same in the child and in who looks for them afterwards."""
    while count > 0:
        made = load.fresh(now_ms, min(load.batch_rows, count))
        yield made
        count -= len(made.ids)


def _child(call: Callable[[], object], group: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rmqstore_benchmarks.grid.aside"]
    if group is not None:  # entered before the child is, so that all of its memory counts
        command = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]
    return subprocess.run(command, input=pickle.dumps(call), capture_output=True, check=False, timeout=_CHILD_PATIENCE_S)


# ---------------------------------------------------------------- a limit on its memory

FLOOR_BYTES: Final = 384 * 1024 * 1024
"""What Python, Arrow and an engine with its caches need to run at all; a little less, and they wait for their own code to be read."""

_GROUP_PATIENCE_S: Final = 5.0


class NoLimitError(OSError):
    """No control group for memory can be made here; the text says why."""


def limit_for(backlog_bytes: int) -> int:
    """Return a quarter of the backlog, or the least that a process runs in."""
    return max(backlog_bytes // 4, FLOOR_BYTES)


@contextmanager
def limited_group(name: str, limit_bytes: int) -> Iterator[Path]:
    """Give a control group; a process that writes its id into ``cgroup.procs`` there has no more memory than this.

    Args:
        name: tells the groups of this machine apart; one of this name that an owner left when it was killed is used again.

    Raises:
        NoLimitError: none can be made.
    """
    parent, limit_name = _parent()
    group = parent / f"rmqstore-bench-{zlib.crc32(name.encode()):08x}"
    try:
        try:
            group.mkdir(exist_ok=True)
            (group / limit_name).write_text(str(limit_bytes))
        except OSError as error:
            raise NoLimitError(f"no control group with a limit can be made in {parent}: {error.strerror}") from error
        with suppress(OSError):  # version 2 alone has it
            (group / "memory.swap.max").write_text("0")
        yield group
    finally:
        _remove_group(group)


def _parent() -> tuple[Path, str]:
    """Return the memory group that this process is in, and the name of its limit."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError as error:
        raise NoLimitError(f"the control groups of this process cannot be read: {error.strerror}") from error
    # Of version 1 there is a group for each controller, of version 2 one for all, whose line names none.
    groups = {controller: path for _, controllers, path in lines for controller in controllers.split(",")}
    for _, point, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in groups:
            return _below(Path(point), groups["memory"]), "memory.limit_in_bytes"
        if kind == "cgroup2":
            group = _below(Path(point), groups.get("", "/"))
            with suppress(OSError):
                if "memory" in (group / "cgroup.subtree_control").read_text().split():
                    return group, "memory.max"
    raise NoLimitError("this machine has no control group for memory")


def _below(mount: Path, path: str) -> Path:
    """Return a group's folder; in a container its path may be that of the host, and the mount is the group itself."""
    named = mount / path.lstrip("/")
    return named if named.is_dir() else mount


def _remove_group(group: Path) -> None:
    """Remove the group; the kernel lets go of an ended process a moment later."""
    until_s = time.monotonic() + _GROUP_PATIENCE_S
    while group.is_dir() and time.monotonic() < until_s:
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.01)


# ---------------------------------------------------------------- the child


def die(task: ShardTask, now_ms: int, made: int, batches: int, count: int) -> None:
    """Send so many timers more than its load has made, say after each call how many were acknowledged, and be killed."""
    load = load_of(task)
    load.made, load.batches = made, batches
    store = open_store(task, rmqstore.ManualClock(now_ms))
    sent = 0
    for each in tail_batches(load, now_ms, count):
        store.send_batch(each.columns)
        sent += len(each.ids)
        print(sent, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def drain(task: ShardTask, now_ms: int, count: int, limit_bytes: int) -> tuple[list[Tables], Ids, Ids]:
    """Let simulated time pass until all is handed over, then pop and ack all, so that what was written last is not read from the cache.

    Returns:
        The tables of both phases, what was popped (a row of five for each message, in order: number, attempt, length and last word of its
        body, and the simulated time, ms), and the numbers that were acked.
    """
    load = load_of(task)
    clock = rmqstore.ManualClock(now_ms)
    parts = []
    with open_store(task, clock) as store:
        calls = _Told(store, clock, load, task.run.seed)
        for name, act, kept in (("cold_hand_over", _hand_all_over, count), ("cold_pop_ack", _Told.drain_ready, 0)):
            phase = Phase(task.run.run_id, task.shard, name)
            columns = measured(phase, Path(task.directory), partial(act, calls)) | {
                "messages": count,
                "user_bytes": count * load.message_bytes,
                "live_bytes": kept * load.message_bytes,
                "memory_limit_bytes": limit_bytes,
            }
            parts.append(phase.tables(columns))
    return parts, np.concatenate([np.zeros((0, 5), np.int64), *calls.popped]), np.concatenate([np.zeros(0, np.int64), *calls.acked])


def _hand_all_over(calls: Calls, phase: Phase) -> None:
    step_ms = max(int(calls.load.mean_wait_ms / _STEPS), 1)
    while (ahead_ms := calls.store.next_wake_ms()) is not None:
        if moved := calls.tick(phase, calls.clock.now_ms() + max(ahead_ms, step_ms)):
            step_ms = next_step_ms(step_ms, moved)


class _Told(Calls):
    """Keeps what the store said of pops and acks, for the account that the parent has."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.popped: list[Ids] = []
        self.acked: list[Ids] = []

    def note_pops(self, ids: Ids, attempts: Ids, lengths: Ids, tails: Ids, now_ms: Ids) -> Ids:
        self.popped.append(np.column_stack([ids, attempts, lengths, tails, now_ms]))
        return ids[:0]

    def note_acks(self, ids: Ids, outcomes: list[rmqstore.AckOutcome]) -> None:
        self.acked.append(ids[are(outcomes, rmqstore.AckOutcome.ACKED)])


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer)()))
