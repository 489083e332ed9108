"""How much memory a process may use, and that LMDB is told to read ahead by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import pytest

import rmqstore
from rmqstore_lmdb import memory
from rmqstore_lmdb.memory import memory_bytes


def system(root: Path, groups: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups, errors="surrogateescape")
    for place, limit in limits.items():
        (root / "sys/fs/cgroup" / place).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / place).write_text(limit)
    return root


V1 = "9:name=systemd:/\n4:memory,hugetlb:/a/b\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "5000\n", "a/memory.max": "9000\n"}, 5000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "9000\n"}, 9000),
        ("0::/host/only\n", {"memory.max": "7000"}, 7000),
        (V1, {"memory/a/b/memory.limit_in_bytes": "6000\n", "memory/memory.limit_in_bytes": "8000\n"}, 6000),
        (V1, {"memory/a/b/memory.limit_in_bytes": str(2**62)}, None),
        ("0::/a\n", {"a/memory.max": "garbage"}, None),
        ("", {}, None),
        ("no colons\n0::/a\n", {"a/memory.max": "4000"}, 4000),
        ("0::/\udcff\n", {"memory.max": "3000"}, 3000),
    ],
    ids=["version 2", "of a parent", "in a container", "version 1", "no limit", "unreadable", "none", "another line", "no UTF-8"],
)
def test_the_least_limit_counts(tmp_path: Path, groups: str, limits: dict[str, str], expected: int | None) -> None:
    machine = memory_bytes(tmp_path / "empty")
    assert machine > 2**26
    assert memory_bytes(system(tmp_path, groups, limits)) == (machine if expected is None else expected)


@pytest.mark.parametrize(
    ("setting", "memory_bytes", "expected"),
    [("auto", 2**40, True), ("auto", 2**10, False), ("on", 2**10, True), ("off", 2**40, False)],
)
def test_what_lmdb_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, memory_bytes: int, expected: bool) -> None:
    rmqstore.open(tmp_path / "s", engine="lmdb", services=False).close()
    told: list[Any] = []
    real = lmdb.Environment

    def environment(*args: Any, **options: Any) -> Any:
        told.append(options["readahead"])
        return real(*args, **options)

    monkeypatch.setattr(lmdb, "Environment", environment)
    monkeypatch.setattr(memory, "memory_bytes", lambda: memory_bytes)
    rmqstore.open(tmp_path / "s", engine="lmdb", services=False, lmdb__readahead=setting).close()
    assert told == [expected]
