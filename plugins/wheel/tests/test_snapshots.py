"""Snapshots, which are copied while other calls go on (R7)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from plugins.wheel.tests.stores import Run, meanwhile, noted
from rmqstore import Message
from rmqstore.engine.kv import directory as tree_copy
from rmqstore_wheel.log import store_copy
from rmqstore_wheel.log.ledger import Ledger


def elsewhere(work: Callable[[], None]) -> None:
    """Do something in another thread, and see to it that it comes to its end."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "other calls wait for the copy"
    assert errors == []


@pytest.mark.parametrize("times", [1, 2, 3])
def test_files_that_are_rewritten_meanwhile_are_copied_anew(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:  # fmt: skip
    """A name that is used again needs a check point at once. A copy that is outrun three times is made while nobody else calls."""
    store = run.store
    run.fill(3, consume=False)
    run.far(*(f"a{number}" for number in range(20)))
    store.send(Message("again", b"x", message_id="again0"))
    left = list(range(times, 0, -1))

    def use_again() -> None:
        store.topics.delete("again")
        store.send(Message("again", b"x", message_id=f"again{left.pop()}"))
        store.pop("t", "g", max_messages=5)

    meanwhile(monkeypatch, store_copy, "copy_tree", lambda *_: left and elsewhere(use_again))
    store.snapshot(tmp_path / "copy")
    assert left == []
    with run.opened(tmp_path / "copy") as copy:
        assert copy.verify() == []
        assert copy.transfer.digest() == store.transfer.digest()
        assert [each.message_id for each in copy.read("again").messages] == [f"again{times}"]


@pytest.mark.parametrize("sends", [0, 3])
def test_a_look_at_a_name_that_is_used_again_leaves_files_to_the_copy(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sends: int
) -> None:  # fmt: skip
    store = run.store
    store.send_batch([Message("again", b"old", queue_id=0)] * 10)
    met: list[str] = []

    def use_again() -> None:
        store.topics.delete("again")
        store.topics.create("again", 1)
        assert not store.read("again").messages
        for _ in range(sends):
            store.send(Message("again", b"new and longer", queue_id=0))

    def copied(source: object, *_: object) -> None:
        if "/again/" in str(source) and not met:
            met.append(str(source))
            elsewhere(use_again)

    meanwhile(monkeypatch, tree_copy, "copy_file", copied)
    store.snapshot(tmp_path / "copy")
    assert met
    with run.opened(tmp_path / "copy") as copy:
        assert [each.body for each in copy.read("again").messages] in ([b"old"] * 10, [b"new and longer"] * sends)
        assert copy.verify() == []


def test_what_waited_for_the_copy_is_made_up_for(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While files are copied no file of the log goes, and no check point is made; afterwards both are."""
    ledger = run.ledger
    run.fill(6)
    kept: list[int] = []
    seen, rewrites = run.files[0], ledger.rewrites

    def work() -> None:
        run.fill(1)
        run.upkeep(8)
        kept.append(run.files[0])

    meanwhile(monkeypatch, store_copy, "copy_file", lambda *_: len(kept) < 2 and elsewhere(work))
    run.store.snapshot(tmp_path / "copy")
    assert kept == [seen, seen]
    assert ledger.rewrites <= rewrites + 1
    run.upkeep()
    assert run.files[0] > seen
    assert ledger.rewrites > rewrites + 1
    is_quick = noted(monkeypatch, Ledger, "resume", lambda fits, *_: fits)
    with run.opened(tmp_path / "copy") as copy:
        assert copy.verify() == []
    assert is_quick == [True], "the copy was made anew from its log"
