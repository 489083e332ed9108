"""Power loss: what the disk may hold when all that was not synced is dropped or torn, rebuilt file by file, opened and compared (R1, R2).

A scripted workload runs under ``flush = sync``; its directory is copied before and after the disk sync of each call. From two copies come
the images that a power cut may leave. Every image must show the state after the last acknowledged call, or that after the call that was
under way. Images are opened in a child process, since a damaged LMDB file may kill its reader.
"""

from __future__ import annotations

import json
import random
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import ManualClock, Store
from tests.crash.script import SETTINGS, START_MS, UPKEEP, Script, Shown, states

PAGE = 4096
SECTOR = 512
META_BYTES = 2 * PAGE
IMAGES_A_CALL = 3
HANGS_S = 30
"""A child that answers no sooner is taken to hang."""

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]
Files = dict[str, bytes]


@dataclass
class Copies:
    """The files of a store: before a call, before each disk sync in it, when the last one of them returned, and after the call."""

    call: str
    now_ms: int
    before: Files
    unsynced: list[Files]
    synced: Files
    after: Files


def read_files(path: Path) -> Files:
    """Read a directory that may be in use; empty directories do not matter."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def write_files(path: Path, files: Files) -> None:
    """Make a directory of files."""
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


def record(path: Path, engine: str) -> list[Copies]:
    """Run the script, copying the directory around each disk sync."""
    clock = ManualClock(START_MS)
    copies = []
    with rmqstore.open(path, engine=engine, clock=clock, **SETTINGS) as store:
        script = Script(store, clock)
        unsynced: list[Files] = []
        settle = store._settle
        before = synced = read_files(path)

        def settle_between_copies(side: Any, ticket: Any) -> None:
            nonlocal synced
            unsynced.append(read_files(path))
            settle(side, ticket)
            if side.durable_position >= ticket.position:
                synced = read_files(path)

        store._settle = settle_between_copies  # type: ignore[method-assign]
        for name, call in [*script.calls.items(), (UPKEEP, script.upkeep)]:
            call()
            after = read_files(path)
            copies.append(Copies(name, clock.now_ms(), before, list(unsynced), synced, after))
            unsynced.clear()
            before = after
    return copies


class Opener:
    """The child that opens images."""

    def __init__(self) -> None:
        self._command = [sys.executable, "-m", "tests.crash.script"]
        self._child: subprocess.Popen[str] | None = None

    def show(self, path: Path, now_ms: int) -> Shown | str:
        """Return what the store shows, or how it failed."""
        if self._child is None:
            root = Path(__file__).parents[2]
            self._child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{path} {now_ms}\n")
        self._child.stdin.flush()
        if not select.select([self._child.stdout], [], [], HANGS_S)[0]:
            self._child.kill()
            self.close()
            return "the process that opened it hangs"
        if not (line := self._child.stdout.readline()):
            status = self._child.wait()
            self.close()
            return f"the process that opened it died with status {status}"
        shown: Shown | str = json.loads(line)
        return shown

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.communicate()
            self._child = None


@pytest.fixture(scope="module")
def opener() -> Iterator[Opener]:
    found = Opener()
    yield found
    found.close()


# ---------------------------------------------------------------- images of RocksDB


def rocksdb_images(copies: Copies, chance: random.Random) -> Iterator[tuple[str, Files, set[int]]]:
    """Yield (what, files, states allowed: 0 before the call, 1 after it).

    The log is cut anywhere behind its length at the last sync, or garbled from there on. The note of how far it was synced is not synced
    itself, so an older one, a torn one or none may be there.
    """
    marks = [copies.before.get("rocksdb/db/SYNCED", b""), b"", bytes(12), copies.before.get("rocksdb/db/SYNCED", b"")[:7]]
    logs = [name for name in copies.after if name.endswith(".log")]
    yield "all that was synced", {**copies.after, **{log: copies.after[log][: len(copies.synced.get(log, b""))] for log in logs}}, {1}
    yield "an older note", {**copies.after, "rocksdb/db/SYNCED": chance.choice(marks)}, {1}
    for unsynced in copies.unsynced:
        logs = [name for name in unsynced if name.endswith(".log") and len(unsynced[name]) > len(copies.before.get(name, b""))]
        if not logs:
            continue
        log = max(logs)
        kept, whole = len(copies.before.get(log, b"")), unsynced[log]
        yield "all un-synced bytes lost", {**unsynced, log: whole[:kept]}, {0, 1}
        yield "all un-synced bytes there", unsynced, {0, 1}
        for _ in range(IMAGES_A_CALL):
            cut = chance.randrange(kept, len(whole))
            garbled = bytearray(whole)
            start = chance.randrange(kept, len(whole))
            end = min(len(whole), start + chance.choice((1, SECTOR, len(whole))))
            garbled[start:end] = chance.choice((bytes(end - start), chance.randbytes(end - start)))
            mark = {"rocksdb/db/SYNCED": chance.choice(marks)}
            yield f"the log cut at {cut} of {kept}-{len(whole)}", {**unsynced, **mark, log: whole[:cut]}, {0, 1}
            yield f"the log garbled at {start}-{end} of {kept}-{len(whole)}", {**unsynced, **mark, log: bytes(garbled)}, {0, 1}
            yield "zeros behind the log", {**unsynced, **mark, log: whole[:cut] + bytes(len(whole) - cut)}, {0, 1}


# ---------------------------------------------------------------- images of LMDB


def lmdb_images(copies: Copies, chance: random.Random) -> Iterator[tuple[str, Files, set[int]]]:
    """Yield images; see :func:`rocksdb_images`.

    A commit writes pages that the last state does not use, syncs, then writes one meta page, whose used part lies within one sector.
    """
    name = "lmdb/db/data.mdb"
    old, new = copies.before[name], copies.after[name]
    yield "all that was synced", copies.after, {1}
    yield "without the lock file", {key: data for key, data in copies.after.items() if not key.endswith("lock.mdb")}, {1}
    pages = [at for at in range(META_BYTES, len(new), PAGE) if new[at : at + PAGE] != old[at : at + PAGE]]
    synced = bytearray(new)
    synced[:META_BYTES] = old[:META_BYTES]
    yield "all pages, but no meta page", {**copies.before, name: bytes(synced)}, {0}
    for _ in range(IMAGES_A_CALL):
        torn = bytearray(old.ljust(chance.choice((len(old), len(new))), b"\0"))
        for at in pages:
            if chance.random() < 0.5 and at + PAGE <= len(torn):
                sectors = chance.choice((range(8), range(chance.randrange(8)), [s for s in range(8) if chance.random() < 0.5]))
                for sector in sectors:
                    here = slice(at + sector * SECTOR, at + (sector + 1) * SECTOR)
                    torn[here] = chance.choice((new[here], new[here], bytes(SECTOR)))
        yield f"some of {len(pages)} pages", {**copies.before, name: bytes(torn)}, {0}
    for meta in (0, PAGE):
        if new[meta : meta + PAGE] != old[meta : meta + PAGE]:
            half = bytearray(synced)
            half[meta : meta + SECTOR] = new[meta : meta + SECTOR]
            yield "the meta page's first sector", {**copies.before, name: bytes(half)}, {0, 1}


IMAGES: dict[str, Any] = {"rocksdb": rocksdb_images, "lmdb": lmdb_images}


@pytest.mark.parametrize("engine", ["lmdb", "rocksdb"])
def test_power_loss_at_every_call(tmp_path: Path, opener: Opener, engine: str) -> None:
    if find_spec(f"rmqstore_{engine}") is None:
        pytest.skip(f"rmqstore-{engine} is not installed")
    chance = random.Random(engine)
    expected = states(upkeep=True)
    recorded = record(tmp_path / "store", engine)
    wrong: list[str] = []
    images = 0
    older: set[int] = set()
    for number, copies in enumerate(recorded):
        for what, files, allowed in IMAGES[engine](copies, chance):
            path = tmp_path / f"image-{images}"
            images += 1
            write_files(path, files)
            shown = opener.show(path, copies.now_ms)
            allowed = allowed | {0} if copies.call == UPKEEP else allowed
            good = [expected[number + step] for step in allowed]
            if shown not in good:
                told = shown.strip().splitlines()[-1] if isinstance(shown, str) else f"shows state {_number_of(shown, expected)}"
                wrong.append(f"call {number} ({copies.call}), {what}: {told}; allowed: {sorted(number + step for step in allowed)}")
            elif shown == expected[number]:
                older.add(number)
            shutil.rmtree(path)
    print(f"\n{engine}: {images} images of {len(recorded)} calls, {len(wrong)} of them wrong")
    assert images > 5 * len(recorded)
    assert len(older) > 10, "the images never showed a call undone, so they prove nothing"
    assert wrong == []


def _number_of(shown: Shown, expected: list[Shown]) -> str:
    return str([number for number, state in enumerate(expected) if state == shown]) if shown in expected else f"of no call: {shown}"[:400]


def test_what_is_dropped_matters(tmp_path: Path, opener: Opener) -> None:
    """The images can refute: with *synced* bytes of the log dropped, an acknowledged call is missing, or the store says so."""
    if find_spec("rmqstore_rocksdb") is None:
        pytest.skip("rmqstore-rocksdb is not installed")
    expected = states()
    copies = record(tmp_path / "store", "rocksdb")[5]
    log = max(name for name in copies.after if name.endswith(".log"))
    path = tmp_path / "image"
    write_files(path, {**copies.after, log: copies.after[log][:-1], "rocksdb/db/SYNCED": b""})
    assert opener.show(path, copies.now_ms) != expected[6]
    again = tmp_path / "again"
    write_files(again, {**copies.after, log: copies.after[log][:-1]})
    told = opener.show(again, copies.now_ms)
    assert isinstance(told, str)
    assert "CorruptStoreError" in told


def test_the_half_made_store_starts_afresh(tmp_path: Path, opener: Opener) -> None:
    """A creation that power cut anywhere leaves a directory that opens, empty: nothing was acknowledged yet."""
    nothing = states()[0]
    for engine in ("lmdb", "rocksdb"):
        if find_spec(f"rmqstore_{engine}") is None:
            continue
        whole = tmp_path / f"whole-{engine}"
        _make(whole, engine).close()
        files = read_files(whole)
        database = {name: data for name, data in files.items() if "/db/" in name}
        half = {name.replace("/db/", "/db.new/"): data[: len(data) // 2] for name, data in database.items()}
        for number, made in enumerate(
            [
                {"LOCK": b"pid"},
                {"rmqstore.creating": b"", "LOCK": b""},
                {"rmqstore.creating": b"", f"{engine}/LOCK": b"", **half},
                {"rmqstore.creating": b"", f"{engine}/LOCK": b"", **database},
                {"rmqstore.creating": b"", "rmqstore.json.new": b'{"form', **database},
                {**files, "rmqstore.creating": b""},
                {**files, "rmqstore.json.new": b'{"form'},
            ]
        ):
            path = tmp_path / f"{engine}-{number}"
            write_files(path, made)
            _make(path, engine).close()
            shown = opener.show(path, START_MS)
            assert shown == nothing, f"{engine}, creation {number}"
            assert (path / "rmqstore.json").exists()


def _make(path: Path, engine: str) -> Store:
    return rmqstore.open(path, engine=engine, clock=ManualClock(START_MS), **SETTINGS)
