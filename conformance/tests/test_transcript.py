"""A history that fails comes with a program that does the same by the public API."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.tests.mutant_runs import result_of
from rmqstore import ConfigError, Message, MessageBatch
from rmqstore.contract import PopRequest
from rmqstore_conformance.model.transcript import Transcript
from rmqstore_conformance.proving import mutants as kit
from rmqstore_conformance.stores import START_MS, Pair, stores_of

MEMORY = Pair("memory", "memory")


def ran(text: str, folder: Path) -> str:
    """Run a program and return what it printed."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, "program.py"], cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return done.stdout


def test_the_program_gets_at_receipts_and_handles_by_its_own_calls(tmp_path: Path) -> None:
    """Calls of every kind, with what they gave; the program ends where the store did."""
    settings = {"max_retries": 1, "flush": "sync"}
    with stores_of(MEMORY) as stores:
        transcript = Transcript(MEMORY, stores, settings)
        store = transcript.watched("store", settings)
        rows = [Message("t", b"1", message_id="m1"), Message("t", b"2", keys=("k",), properties={"n": "1"}, message_id="m2")]
        store.send_batch(rows, marks=[b"mark"])
        store.send_batch(MessageBatch.of([Message("t", b"3", message_id="m3")]).columns)
        timer = store.send(Message("t", b"4", message_id="m4"), delay_ms=5000)
        assert timer.handle
        assert store.cancel([timer.handle])[0].name == "CANCELLED"
        first, second, _ = store.pop("t", "g", max_messages=3, invisible_ms=1000)
        store.ack([first])
        changed = store.change_invisible([second.receipt or ""], invisible_ms=2000)
        store.release([changed[0].receipt or ""])
        popped, _ = store.engine.pops.pop(PopRequest("t", "g", invisible_ms=1000), stores.clock.now_ms())
        assert [each.message_id for each in popped.messages.messages()] == ["m2"]
        stores.clock.set(START_MS + 10_000)
        store.tick()
        store.pop("t", "g", max_messages=3, invisible_ms=1000)
        stores.clock.set(START_MS + 20_000)
        store.tick()
        dead = store.dead_letters.list("g")
        assert dead
        store.dead_letters.drop(dead[:1])
        left = store.lag("t", "g")
        program = transcript.saved()
    text = program.read_text(encoding="utf-8")
    program.unlink()
    assert timer.handle not in text
    assert ran(text + 'print(store.lag("t", "g"))\n', tmp_path).splitlines() == ["[]", str(left)]


def test_the_program_opens_a_store_that_did_not_open() -> None:
    with stores_of(MEMORY) as stores:
        transcript = Transcript(MEMORY, stores, {})
        with pytest.raises(ConfigError):
            transcript.watched("copy", {"max_retries": -1})
        program = transcript.saved()
    assert program.read_text(encoding="utf-8").splitlines()[-2:] == ["store = opened('copy')", "print(store.verify())"]
    program.unlink()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_program_of_a_failed_history_fails_alike(tmp_path: Path) -> None:
    result = result_of(tmp_path, "mutant_a_second_ack_says_acked", kit.__name__, "extended", "-k", "any_history_agrees")
    found = re.search(r"(\S+\.py) does the same to a store of its own", result["seen"])
    assert found, result["seen"]
    text = Path(found[1]).read_text(encoding="utf-8")
    Path(found[1]).unlink()
    # The last ack is the second one, of a receipt that an earlier call gave.
    acks = re.findall(r"^(r\d+) = store\.ack\(\[r\d+\S*\.receipt.*\]\)$", text, re.MULTILINE)
    assert "AckOutcome.ACKED" in ran(f"{text}print({acks[-1]})\n", tmp_path)
