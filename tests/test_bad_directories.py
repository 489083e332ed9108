"""Directories that are no store, not this store, half a store, or not writable: a typed error that names them, and nothing is spoilt."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import (
    CorruptStoreError,
    FormatVersionError,
    IllegalArgumentTypeError,
    ManualClock,
    Message,
    RmqstoreError,
    Store,
    StoreError,
    StorePathError,
    UnknownEngineError,
)
from rmqstore.store.directory import read_manifest
from tests.pairs import ENGINES

NOW_MS = 1_700_000_000_000
both = pytest.mark.skipif(not {"lmdb", "rocksdb"} <= {*ENGINES}, reason="needs rmqstore-lmdb and -rocksdb")


def _open(path: Any, **settings: Any) -> Store:
    return rmqstore.open(path, **{"engine": "memory", "clock": ManualClock(NOW_MS), "services": False, **settings})


@pytest.fixture(params=ENGINES[1:])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(tmp_path: Path, engine: str) -> Path:
    """A closed store with a message and a timer."""
    path = tmp_path / "store"
    with _open(path, engine=engine) as store:
        store.send(Message("t", b"x"))
        store.send(Message("t", b"y"), delay_ms=5_000)
    return path


def _is_whole(path: Path, engine: str) -> None:
    with _open(path, engine=engine) as store:
        assert store.lag("t", "g").ready == 1
        assert store.pending().total == 1
        assert store.verify() == []


def _listing(path: Path) -> set[str]:
    return {str(entry.relative_to(path)) for entry in path.rglob("*")}


# ---------------------------------------------------------------- arguments


class _BytesPath:
    def __fspath__(self) -> bytes:
        return b"/tmp/never"


class _WrongPath:
    def __fspath__(self) -> int:
        return 5


@pytest.mark.parametrize(
    "path",
    [None, 5, "", b"store", True, ["store"], _BytesPath(), _WrongPath()],
    ids=lambda path: type(path).__name__ + str(path)[:5].strip("<"),
)
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(IllegalArgumentTypeError, match="path"):
        _open(path).close()


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "a" * 300, "a/" * 3000 + "b"], ids=lambda name: repr(name[:4]))
def test_an_impossible_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(RmqstoreError):
        _open(f"{tmp_path}/{name}").close()
    assert _listing(tmp_path) == set()


def test_a_store_in_memory_is_an_engine_and_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for opening in (rmqstore.open, _open):
        with pytest.raises(rmqstore.IllegalArgumentError, match=r'":memory:" is no directory; .*engine="memory"'):
            opening(":memory:")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "settings",
    [{"colour": "red"}, {"flush": "sometimes"}, {"precision_ms": 150}, {"default_queues": 1.5}, {"init": 5}, {"clock__max_step_ms": -5},
     {"services": "yes"}, {"services": 1}, {"clock": 5}, {"clock": []}, {"engine": 5}, {"engine": b"memory"}],
    ids=str,
)  # fmt: skip
def test_a_bad_setting_leaves_nothing_behind(tmp_path: Path, settings: dict[str, Any]) -> None:
    """``test_config`` has more of them."""
    (culprit,) = settings
    with pytest.raises(RmqstoreError, match=culprit.rpartition("__")[2]):
        _open(tmp_path / "store", **settings).close()
    with _open(tmp_path / "store") as store:
        assert store.verify() == []


@pytest.mark.parametrize("name", ["nope", "Memory", "../memory", "\ud800"])
def test_an_unknown_engine(tmp_path: Path, name: str) -> None:
    for key in ("engine", "timer_engine", "pop_engine"):
        with pytest.raises(UnknownEngineError):
            _open(tmp_path / "store", **{key: name}).close()
    assert _listing(tmp_path) == set()


# ---------------------------------------------------------------- places


def test_places_where_no_store_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "at-all")
    for name in ("file", "file/below", "missing/below", "dangling"):
        with pytest.raises(StorePathError, match=name.split("/")[0]):
            _open(tmp_path / name).close()
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert _listing(tmp_path) == {"file", "dangling"}


@pytest.mark.parametrize("strangers", [["notes.txt"], ["LOCK.old", ".git"], ["db"], ["rmqstore.json.new"], ["lmdb"]])
def test_a_directory_of_other_things_is_left_alone(tmp_path: Path, strangers: list[str]) -> None:
    for name in strangers:
        (tmp_path / name).write_bytes(b"mine")
    before = _listing(tmp_path)
    with pytest.raises(StorePathError, match=sorted(strangers)[0]):
        _open(tmp_path).close()
    assert _listing(tmp_path) == before, "a directory that is no store got files of one"


def test_a_store_that_another_open_makes_meanwhile_is_no_stranger(made: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []

    def late(path: Path) -> dict[str, Any] | None:
        looked.append(path)
        return None if len(looked) == 1 else read_manifest(path)

    monkeypatch.setattr("rmqstore.store.directory.read_manifest", late)
    rmqstore.open(made, engine=engine, services=False).close()
    assert len(looked) > 1


def test_strangers_in_a_store_do_not_matter(made: Path, engine: str) -> None:
    (made / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (made / "lost+found").mkdir()
    (made / engine / "core.1234").write_bytes(b"x")
    _is_whole(made, engine)
    assert (made / ".DS_Store").exists()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A mount point that shows ``tmp_path / "rw"`` read-only; root ignores permission bits."""
    (tmp_path / "rw").mkdir()
    (tmp_path / "ro").mkdir()
    commands = (["mount", "--bind", str(tmp_path / "rw"), str(tmp_path / "ro")], ["mount", "-o", "remount,ro,bind", str(tmp_path / "ro")])
    for command in commands:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        if mounted.returncode:
            pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    yield tmp_path / "ro"
    subprocess.run(["umount", "-l", str(tmp_path / "ro")], check=True)


def test_a_read_only_place(read_only: Path, engine: str) -> None:
    writable = read_only.with_name("rw")
    with pytest.raises(StorePathError, match="store"):
        _open(read_only / "store", engine=engine).close()
    (writable / "empty").mkdir()
    with pytest.raises(StorePathError, match="empty"):
        _open(read_only / "empty", engine=engine).close()
    with _open(writable / "store", engine=engine) as store:
        store.send(Message("t", b"x"))
        store.send(Message("t", b"y"), delay_ms=5_000)
        with pytest.raises(StorePathError, match="copy"):
            store.snapshot(read_only / "copy")
        assert store.verify() == []
    with pytest.raises(StorePathError, match="store"):
        _open(read_only / "store", engine=engine).close()
    _is_whole(writable / "store", engine)


# ---------------------------------------------------------------- somebody else's store


@both
def test_the_engine_directory_of_another_engine(made: Path, tmp_path: Path, engine: str) -> None:
    other = "rocksdb" if engine == "lmdb" else "lmdb"
    _open(tmp_path / "other", engine=other).close()
    (made / engine).rename(tmp_path / "kept")
    (tmp_path / "other" / other).rename(made / engine)
    with pytest.raises(FormatVersionError, match=other):
        _open(made, engine=engine).close()
    (made / engine).rename(tmp_path / "other" / other)
    (tmp_path / "kept").rename(made / engine)
    _is_whole(made, engine)


MANIFESTS: list[tuple[bytes | dict[str, Any], type[RmqstoreError]]] = [
    (b"", CorruptStoreError),
    (b'{"format": 1, "sto', CorruptStoreError),
    (b"\xff\xfe\x00", CorruptStoreError),
    (b"[]", CorruptStoreError),
    ({"store_id": None}, CorruptStoreError),
    ({"store_id": True}, CorruptStoreError),
    ({"store_id": 2**40}, CorruptStoreError),
    ({"store_id": -1}, CorruptStoreError),
    ({"baked": 5}, CorruptStoreError),
    ({"baked": {}}, RmqstoreError),
    ({"format": 2}, FormatVersionError),
    (b'{"format": 2, "id": "x"}', FormatVersionError),
    ({"format": "1"}, FormatVersionError),
    ({"format": None}, FormatVersionError),
]
BAKED: list[dict[str, Any]] = [{"timer_engine": "nope"}, {"timer_engine": 5}, {"precision_ms": 7}, {"precision_ms": "1000"}]


def test_a_manifest_that_cannot_be_read(made: Path, engine: str) -> None:
    manifest = made / "rmqstore.json"
    good = manifest.read_bytes()
    fields = json.loads(good)
    contents = [(each if isinstance(each, bytes) else json.dumps({**fields, **each}).encode(), kind) for each, kind in MANIFESTS]
    contents += [(json.dumps({**fields, "baked": {**fields["baked"], **wrong}}).encode(), RmqstoreError) for wrong in BAKED]
    for content, kind in contents:
        manifest.write_bytes(content)
        with pytest.raises(kind):
            rmqstore.open(made, services=False).close()
    manifest.write_bytes(good)
    _is_whole(made, engine)


@pytest.mark.parametrize("content", ["rmqstore lmdb 99\n", "rmqstore nobody 1\n", "", "garbage \ud7ff", None])
def test_a_format_file_that_does_not_fit(made: Path, engine: str, content: str | None) -> None:
    file = made / engine / "db" / "FORMAT"
    good = file.read_text()
    if content is None:
        file.unlink()
    else:
        file.write_text(content.replace("lmdb", engine))
    with pytest.raises(FormatVersionError, match=engine):
        _open(made, engine=engine).close()
    file.write_text(good)
    _is_whole(made, engine)


def test_half_a_creation_starts_afresh(made: Path, engine: str) -> None:
    """Without the manifest but with the note that says that it was being created, nothing was ever acknowledged."""
    (made / "rmqstore.json").unlink()
    with pytest.raises(StorePathError, match=str(made)):
        _open(made, engine=engine).close()
    assert (made / engine).exists(), "a store that lost its manifest was thrown away"
    (made / "rmqstore.creating").touch()
    with _open(made, engine=engine) as store:
        assert store.topics.list() == []


def test_a_store_whose_database_is_gone(made: Path, engine: str, tmp_path: Path) -> None:
    """A manifest says that there was a store: an empty one in its place would be silent loss."""
    (made / engine).rename(tmp_path / "kept")
    with pytest.raises(StoreError):
        _open(made, engine=engine).close()
    if (made / engine).exists():
        subprocess.run(["rm", "-r", str(made / engine)], check=True)
    (tmp_path / "kept").rename(made / engine)
    _is_whole(made, engine)
