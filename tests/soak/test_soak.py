"""A short soak, and that its account tells what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.test_sharing import ENGINES
from tests.soak.audit import Account
from tests.soak.run import soak


@pytest.mark.crash
@pytest.mark.timeout(400)
@pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")
def test_no_message_is_lost_or_doubled() -> None:
    assert soak(ENGINES[0], 12, "0") == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not ENGINES, reason="no durable engine is installed")
def test_no_row_of_a_stream_is_lost_or_doubled() -> None:
    streams = pytest.importorskip("tests.soak.streams", reason="needs PySpark", exc_type=ImportError)
    assert streams.soak(20_000, ENGINES[0], "0", 4) == []


def test_the_account_of_streams_tells_what_is_wrong() -> None:
    streams = pytest.importorskip("tests.soak.streams", reason="needs PySpark", exc_type=ImportError)
    assert streams.faults([2, 0, 1], 3) == []
    assert streams.faults([2, 2, 3, -1], 3) == ["2 rows missing", "1 rows there twice", "2 rows unknown"]


SENT = ["sending 1 m kept 50", "sent 2 m"]
DONE = [*SENT, "popped 4 m 3 50 60", "handled 5 m", "acked 6 m ACKED"]


@pytest.mark.parametrize(
    ("lines", "stored", "wrong"),
    [
        (DONE, 1, []),
        (["sending 1 m kept 50"], 0, []),
        ([*SENT, "cancelling 3 m ?"], 0, []),
        ([*SENT, "cancelling 3 m ?", "cancel 4 m CANCELLED"], 0, []),
        ([*DONE, "acked 7 m ALREADY_ACKED", "refused 8 - StoreFullError"], 1, []),
        ([*SENT], 1, ["sent, and never handled"]),
        ([*SENT, "cancelling 3 m ?", "cancel 4 m ALREADY_DELIVERED"], 1, ["sent, and never handled"]),
        (DONE, 0, ["sent, and not in its topic"]),
        (DONE, 2, ["stored more than once"]),
        (DONE[2:4], 1, ["never sent, but there"]),
        ([*DONE, "cancelling 7 m ?", "cancel 8 m CANCELLED"], 1, ["cancelled, and delivered"]),
        ([*DONE, "cancelling 7 m ?", "cancel 8 m UNKNOWN"], 1, ["unknown to the cancel with its own handle"]),
        ([*DONE, "acked 7 m ACKED"], 1, ["acked more than once"]),
        ([*DONE, "popped 9 m 8 50 60"], 1, ["delivered after its ack"]),
        ([*SENT, "popped 4 m 3 50 49", "handled 5 m"], 1, ["delivered before its time"]),
        ([*SENT, "popped 4 m 3 51 60", "handled 5 m"], 1, ["delivered for another time than it was sent for"]),
    ],
)
def test_the_account_tells_what_is_wrong(tmp_path: Path, lines: list[str], stored: int, wrong: list[str]) -> None:
    account = Account(tmp_path)
    for part in (lines[:2], lines[2:]):
        with open(tmp_path / "one.ledger", "a") as file:
            file.write("\n".join(part)[:-1])
            account.read()  # the last line is torn
            file.write(part[-1][-1:] + "\n" if part else "")
    account.read()
    account.stored["m"] = stored
    assert [each.partition(":")[0] for each in account.wrong("kept")] == wrong
