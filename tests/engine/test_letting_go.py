"""What an engine lets go of in its close, interrupted at every step (F4): the next close finds all that is left."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore import Message, StoreClosedError
from rmqstore.engine.kv.group_commit import CommittedKV
from rmqstore_conformance.faults.interrupting import Interrupted, TimedOut, belongs_to, stepped
from tests.pairs import ENGINES


def interrupt() -> None:
    raise Interrupted


def time_out() -> None:
    raise TimedOut


def files_open_below(path: Path) -> list[Path]:
    """Return the files below a directory that this process has open, by the system's account."""
    names = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            names.append(each.readlink())
    return [name for name in names if name.is_relative_to(path)]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads what is open from /proc")
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_interrupted_as_it_lets_go_is_let_go_of_by_the_next_close(
    tmp_path: Path, engine: str, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if read_only and engine == "memory":
        pytest.skip("keeps nothing to read")
    path, step, is_over = tmp_path.resolve() / "s", 1, False
    unheard: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unheard.append)  # what Python does with what is raised in a finalizer
    with rmqstore.open(path, engine=engine, services=False) as store:
        store.send(Message("t", b"x"))
        store.send(Message("t", b"y", keys=("k",)), delay_ms=60_000)
    while not is_over:
        opened: Any = rmqstore.open(path, read_only=read_only, **({} if read_only else {"services": False}))
        kv: CommittedKV = opened.engine.pops._shared.kv
        try:
            _, steps = stepped(kv._end, step, time_out if step % 2 else interrupt, belongs_to(opened))
        except (Interrupted, TimedOut):
            assert not kv.closed
        else:
            is_over = steps < step
            assert is_over or unheard, f"interrupted at step {step}, and nobody heard of it"
        unheard.clear()
        kv.close()
        assert kv.closed
        with pytest.raises(StoreClosedError):
            kv.get(0, b"x")
        assert files_open_below(path / engine) == [], f"interrupted at step {step}"
        opened.close()
        assert files_open_below(path) == []
        step += 1
    assert step > 10
