"""The program that is traced: it plays a script once, or opens a store, or plays the workload again and again with one call failing.

strace fails the call number ``at`` of each kind in each thread. Each play is a fork of this process, made before any store is open; it
makes ``at - n`` calls of one kind on a scratch file first, so that call number n of that kind of the store fails. What happened goes to one
file a play, by ``writev``, which is not made to fail. In a crowd all syncs from number ``at`` on fail, so that those of a thread fail that
made as many.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from rmqstore import ManualClock, Message, RmqstoreError, Store
from rmqstore.engine.kv.base import WriteBatch
from rmqstore.engine.kv.buffered import BufferedKV
from rmqstore_conformance.faults.children import import_all
from rmqstore_conformance.faults.script import START_MS, Answer, open_script
from rmqstore_conformance.faults.scripts import script_of
from rmqstore_conformance.faults.showing import Shown, difference, show
from rmqstore_conformance.faults.workload import Workload
from rmqstore_conformance.power.replaying import MARK
from rmqstore_conformance.stores import Pair
from rmqstore_conformance.targets import announce

Report = Callable[..., None]

SENDERS: Final = 4
SENT_TOGETHER: Final = 32
_SENT_BYTES: Final = 1_000_000


def mark(event: str, number: int, prefix: str = MARK) -> None:
    """Let the tracer see where a step begins and ends."""
    os.access(f"{prefix}{event}-{number}", os.F_OK)


def play_once(job: dict[str, Any]) -> None:
    """Play a script, with marks between its steps; the closing is one step more. What was answered goes to a file, with the notes."""
    clock = ManualClock(START_MS)
    marked = partial(mark, prefix=job.get("mark", MARK))
    marked("begin", 0)
    store = open_script(job["path"], Pair(*job["pair"]), job["settings"], clock)
    if job["eager"]:
        make_eager(store)
    marked("end", 0)
    script = script_of(job["script"])(store, clock)
    answers: list[Answer] = []
    for number, call in enumerate(script.calls.values(), start=1):
        marked("begin", number)
        answers.append(call())
        marked("end", number)
    store.close()
    Path(job["told"]).write_text(json.dumps({"answers": answers, "notes": script.notes}))


def play_together(job: dict[str, Any]) -> None:
    """Let several threads send at the same time, now and for later; a mark stands behind each call that was answered."""
    clock = ManualClock(START_MS)
    store = open_script(job["path"], Pair(*job["pair"]), job["settings"], clock)
    marked = partial(mark, prefix=job.get("mark", MARK))
    begin = threading.Barrier(SENDERS)
    sys.setswitchinterval(1e-6)  # threads meet in the middle of things more often

    def send(sender: int) -> None:
        for number in range(sender, SENT_TOGETHER, SENDERS):
            # Large, so that one thread writes while another one syncs; and in rounds, as the sync of a later call takes earlier ones in.
            begin.wait()
            store.send(Message("t", bytes(_SENT_BYTES), message_id=f"m{number}", queue_id=0), delay_ms=1000 * (number // SENDERS % 2))
            marked("end", number)

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    Path(job["told"]).write_text(json.dumps({"answers": [], "notes": {}}))


def open_once(job: dict[str, Any]) -> None:
    """Open a store, send a message there if the job names a topic for it, and go without closing the store."""
    store = open_script(job["path"], Pair(*job["pair"]), job["settings"], ManualClock(job["now_ms"]))
    if job["send_to"]:
        store.send(Message(job["send_to"], b"sent after a kill"))
    os._exit(0)


# ---------------------------------------------------------------- what is kept back until somebody syncs

# A seam of engines that keep writes in memory until somebody syncs: each write goes to the disk at once, as if another thread had synced.
# Two writes of one call then are two states of the disk, between which a cut shows what the call left half done. Seen from outside, by
# system calls alone, both are in one transaction as long as no other thread comes in between.


def _buffers_of(store: Store) -> list[BufferedKV]:
    shared = [getattr(side, "_shared", None) for side in (store.engine.timers, store.engine.pops)]
    found = [kv for each in shared if isinstance(kv := getattr(each, "kv", None), BufferedKV)]
    return list(dict.fromkeys(found))


def keeps_back(store: Store) -> bool:
    """Say whether a side of a store has the seam."""
    return bool(_buffers_of(store))


def make_eager(store: Store) -> None:
    """Let each write of a store be durable at once."""
    for kv in _buffers_of(store):

        def write(batch: WriteBatch, kv: BufferedKV = kv, sound: object = kv.write) -> int:
            position: int = sound(batch)  # type: ignore[operator]
            kv.sync()
            return position

        kv.write = write  # type: ignore[method-assign]


# ---------------------------------------------------------------- one call fails


def _calls_of(kind: str, path: Path) -> Callable[[], object]:
    scratch = os.open(path, os.O_RDWR | os.O_CREAT)
    calls: dict[str, Callable[[], object]] = {
        "fsync": lambda: os.fsync(scratch),
        "fdatasync": lambda: os.fdatasync(scratch),
        "msync": mmap.mmap(-1, mmap.PAGESIZE).flush,
        "pwrite64": lambda: os.pwrite(scratch, b"x", 0),
        "write": lambda: os.write(scratch, b"x"),
        "pwritev": lambda: os.pwritev(scratch, [b"x"], 0),
        "ftruncate": lambda: os.ftruncate(scratch, 1),
        "fallocate": lambda: os.posix_fallocate(scratch, 0, 1),
        "rename": lambda: path.rename(path),
    }
    return calls[kind]


FAILABLE: Final = ("fsync", "fdatasync", "pwrite64", "write", "pwritev", "ftruncate", "fallocate", "rename")
"""System calls that can be counted, so that any one of them can be made to fail."""


def _outcome(call: Callable[[], object]) -> list[str]:
    try:
        call()
    except RmqstoreError as error:
        return [type(error).__name__, str(error), "typed"]
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["ok"]


def play_with_a_failure(job: dict[str, Any], path: Path, report: Report) -> None:
    """Make every call of the script; after one that failed look, and make it again."""
    clock = ManualClock(START_MS)
    steps: list[tuple[str, bool, Shown]] = job["steps"]
    try:
        store = open_script(path, Pair(*job["pair"]), job["settings"], clock)
    except Exception as error:
        report("open", type(error).__name__, str(error), *(["typed"] if isinstance(error, RmqstoreError) else []))
        return
    mark("end", 0)
    calls = Workload(store, clock).calls
    for number, (name, may_halt, _) in enumerate(steps[1:], start=1):
        call = calls[name]
        outcome = _outcome(call)
        report(name, *outcome)
        if outcome[0] == "ok":
            continue
        report("look", _look(partial(show, store), [shown for _, _, shown in steps[number - 1 : number + may_halt]]))
        again = _outcome(call)
        report("again", *again)
        if again[0] != "ok":
            # After a failed sync nothing may be answered any more, also what the engine of the other side could do.
            for what, each in {"send": "send", "tick": "tick that hands over"}.items() if job["every_later"] else ():
                report(f"then {what}", *_outcome(calls[each]))
            break
    report("close", *_outcome(store.close))


def _look(look: Callable[[], Shown], allowed: list[Shown]) -> str:
    try:
        shown = look()
    except RmqstoreError as error:
        return f"{type(error).__name__}: {error}"
    return "unchanged" if shown in allowed else f"changed: {difference(shown, allowed[0])}"


def _write(file: int, *words: str) -> None:
    os.writev(file, [(json.dumps(words) + "\n").encode()])


def play_with_failures(job: dict[str, Any]) -> None:
    """Play once for each number of a call that is to fail."""
    folder = Path(job["folder"])
    for kind, number in ((kind, number) for kind, numbers in job["numbers"].items() for number in numbers):
        child = os.fork()
        if child == 0:
            make = _calls_of(kind, folder / "scratch")
            lines = os.open(folder / f"report-{kind}-{number}", os.O_WRONLY | os.O_CREAT)
            _write(lines, "process", str(os.getpid()))
            for _ in range(job["at"][kind] - number):
                make()
            play_with_a_failure(job, folder / f"store-{kind}-{number}", partial(_write, lines))
            os._exit(0)
        os.waitpid(child, 0)


# ---------------------------------------------------------------- all syncs of several threads fail


def _crowd_calls(store: Store, clock: ManualClock) -> dict[str, Callable[[], object]]:
    """Return calls that wait for the disk and can be made in any order; what they need is stored."""
    calls: dict[str, Callable[[], object]] = {}
    for number in range(2):
        topic, later = f"t{number}", Message("later", b"x", deliver_at_ms=START_MS + 60_000)
        store.send(Message(topic, b"held"))
        (held,) = store.pop(topic, "g")
        store.send(Message(topic, b"free"))
        handle = store.send(later).handle
        calls |= {
            f"send {number}": partial(store.send, Message("new", b"x")),
            f"send later {number}": partial(store.send, later),
            f"cancel {number}": partial(store.cancel, handle),
            f"pop {number}": partial(store.pop, topic, "g"),
            f"ack {number}": partial(store.ack, held),
        }
    return {**calls, "close": store.close}


def play_in_a_crowd(job: dict[str, Any], names: list[str], path: Path, report: Report) -> None:
    """Make calls at the same time, each in a thread of its own whose syncs fail."""
    clock = ManualClock(START_MS)
    store = open_script(path, Pair(*job["pair"]), job["settings"], clock)
    calls = _crowd_calls(store, clock)
    together = threading.Barrier(len(names))
    outcomes: dict[str, list[str]] = {}

    def act(number: int, name: str) -> None:
        scratch = path.with_name(f"{path.name}-scratch-{number}")
        for kind in ("fsync", "fdatasync", "msync"):
            sync = _calls_of(kind, scratch)
            for _ in range(job["at"] - 1):
                sync()
        together.wait()
        outcomes[name] = _outcome(calls[name])

    threads = [threading.Thread(target=act, args=each) for each in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        report(name, *outcomes[name])


def play_crowds(job: dict[str, Any]) -> None:
    """Play once for each crowd."""
    folder = Path(job["folder"])
    for number, names in enumerate(job["crowds"]):
        child = os.fork()
        if child == 0:
            lines = os.open(folder / f"report-{number}", os.O_WRONLY | os.O_CREAT)
            play_in_a_crowd(job, names, folder / f"store-{number}", partial(_write, lines))
            os._exit(0)
        os.waitpid(child, 0)


def do_each(job: dict[str, Any]) -> None:
    """Do several jobs, each in a fork; a mark stands behind each."""
    for number, each in enumerate(job["jobs"]):
        if (child := os.fork()) == 0:
            do(each)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"job {number} failed")
        mark("job", number)


def do(job: dict[str, Any]) -> None:
    """Do a job."""
    others = {"open": open_once, "fail": play_with_failures, "crowd": play_crowds, "each": do_each, "together": play_together}
    {"play": play_once, **others}[job["do"]](job)


def main() -> None:
    """Do the job in the file that the command line names."""
    job = json.loads(Path(sys.argv[1]).read_bytes())
    announce(job["plugins"])
    import_all(*(each["pair"] for each in job.get("jobs", [job])))
    do(job)


if __name__ == "__main__":
    main()
