"""docs/rip43.md says nothing that no test backs: its tables name the tests, or cases of the suite, and what it calls missing is.

docs/formats.md: the pictures add up, and show what the codecs have.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from plugins.wheel.tests.stores import WheelStores, index_of
from rmqstore import CancelOutcome, IllegalArgumentError
from rmqstore.contract import Receipt
from rmqstore_conformance import cases
from rmqstore_conformance.stores import DAY_MS, message
from rmqstore_wheel import formats
from rmqstore_wheel.formats import commit_log, config_files, consume_queue, index_file, timer_log, wheel
from rmqstore_wheel.formats.messages import WHEEL_TOPIC

HERE = Path(__file__).parent
PAGE = (HERE.parents[2] / "docs" / "rip43.md").read_text(encoding="utf-8")
CASE = r"`([A-Z]\d+)\.(\w+)`"
FAULTS = [f"{kind}{number}" for kind, last in (("L", 13), ("D", 7), ("T", 1), ("P", 14)) for number in range(1, last + 1)]


def written_tests() -> set[str]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in HERE.glob("test_*rocketmq*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_the_page_names_every_test_and_no_other() -> None:
    files = {path.name.removesuffix(".py") for path in HERE.glob("test_*rocketmq*.py")}
    assert set(re.findall(r"`(test_\w+)`", PAGE)) == written_tests()
    assert set(re.findall(r"`(test_\w+)\.py`", PAGE)) == files


def test_the_cases_that_the_page_names_are_there() -> None:
    written = "".join(path.read_text(encoding="utf-8") for path in Path(cases.__path__[0]).glob("test_*.py"))
    named = re.findall(CASE, PAGE)
    assert [
        name for clause, name in named if f"def test_{clause.lower()}_{name}(" not in written and f"def test_{name}(" not in written
    ] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_row_with_a_test_of_its_number_or_a_case(fault: str) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {fault} |")]
    assert f"`test_{fault.lower()}_" in row or re.search(CASE, row)


def test_what_the_page_calls_missing_is(stores: WheelStores) -> None:
    store = stores.open()
    cancelled = store.send(message("cancelled"), delay_ms=1000)
    assert store.cancel(cancelled.handle) is CancelOutcome.CANCELLED
    far = store.send(message("far"), delay_ms=5 * DAY_MS)
    assert store.cancel(far.handle) is CancelOutcome.CANCELLED
    store.send_batch([message(n) for n in range(3)])
    popped = store.pop("t", "g", invisible_ms=1000)
    store.ack(popped[0])
    stores.clock.advance(1000)
    store.tick()
    db = stores.path(store)
    store.close()
    files = {"FORMAT", "commitlog", "consumequeue", "timerlog", "timerwheel", "config", "checkpoint", "lock", "rmqstore"}
    assert {path.name for path in db.iterdir()} == files
    assert {path.name for path in (db / "config").iterdir()} == {"consumerOffset.json", "timercheck"}
    (revive,) = (path for path in (db / "consumequeue").iterdir() if path.name.startswith("rmq_sys_REVIVE_LOG_"))
    assert [path.name for path in revive.iterdir()] == ["0"]
    assert {path.name for path in (db / "consumequeue").iterdir()} == {WHEEL_TOPIC, "t", "%RETRY%g+t", revive.name}
    (log,) = (db / "commitlog").iterdir()
    assert log.stat().st_size < 2**30
    assert b"TIMER_DEL_UNIQKEY\x01t+mcancelled" in log.read_bytes()
    assert (db / "timerwheel").stat().st_size == 38_707_200
    (units,) = (db / "timerlog").iterdir()
    data = units.read_bytes()
    found = np.frombuffer(data, timer_log.UNIT, len(data) // timer_log.UNIT_BYTES)
    found = found[found["size"] == timer_log.UNIT_BYTES]
    near, cancel, away = timer_log.DEFAULT, timer_log.DEFAULT | timer_log.DELETE, timer_log.DEFAULT | timer_log.ROLL
    assert found["flags"].tolist() == [near, cancel, away], "two timers, and the cancel of the near one"


def test_what_the_page_calls_the_same_is(stores: WheelStores) -> None:
    store = stores.open()
    store.send(message("asked", properties={"TIMER_DELAY_SEC": "3"}))
    (timer,) = store.scan().timers
    assert timer.message.deliver_at_ms == stores.clock.now_ms() + 3000
    (waiting,) = index_of(store).wheel.slots[index_of(store).wheel.slots["timers"] > 0]
    assert int(waiting["tick"]) == stores.clock.now_ms() // 1000 + 2
    assert b"TIMER_OUT_MS\x01%d" % (stores.clock.now_ms() + 2000) in next((stores.path(store) / "commitlog").iterdir()).read_bytes()
    stores.clock.advance(3000)
    store.tick()
    (popped,) = store.pop("t", "g")
    fields = (popped.receipt or "").split(" ")
    assert fields[1:5] == [str(stores.clock.now_ms()), "60000", "0", "0"]
    receipt = Receipt.parse(popped.receipt or "")
    assert receipt is not None
    assert (fields[0], fields[6], fields[7], fields[8]) == ("0", "0", "0", "0")
    with pytest.raises(IllegalArgumentError):
        store.pop("t", "g", max_messages=1025)
    stores.clock.advance(60_000)
    store.tick()
    (again,) = store.pop("t", "g")
    assert (again.attempt, again.first_pop_ms) == (2, popped.first_pop_ms)


# ---------------------------------------------------------------- docs/formats.md

FORMATS = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
_PICTURE = re.compile(r"^```\noffset  type   field\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^(\d+|\+) +(i8|i16|i32|i64|u32|u64|b8|s) +\S", re.MULTILINE)
_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "u32": 4, "u64": 8, "b8": 8}


def section(heading: str) -> str:
    return FORMATS.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def pictures(text: str) -> list[list[tuple[str, str]]]:
    """Return the (offset, type) pairs of every picture."""
    return [_FIELD.findall(picture) for picture in _PICTURE.findall(text)]


def test_every_line_of_the_pictures_is_read_and_the_offsets_add_up() -> None:
    assert len(pictures(FORMATS)) >= 10
    for picture, fields in zip(_PICTURE.findall(FORMATS), pictures(FORMATS), strict=True):
        assert len(fields) == len(picture.splitlines())
        at: int | None = 0
        for offset, kind in fields:
            assert offset == ("+" if at is None else str(at)), picture
            at = None if at is None or kind == "s" else at + _BYTES[kind]


def laid_out(dtype: np.dtype[np.void]) -> list[tuple[str, str]]:
    assert dtype.fields is not None
    return [(str(offset), f"i{8 * kind.itemsize}") for kind, offset, *_ in dtype.fields.values()]


@pytest.mark.parametrize(
    ("heading", "number", "dtype"),
    [
        ("Consume queue", 0, consume_queue.UNIT),
        ("Timer wheel", 0, wheel.SLOT),
        ("Timer log", 0, timer_log.UNIT),
        ("Index file", 1, index_file.entries_of(b"").dtype),
    ],
)
def test_units_are_those_of_the_codecs(heading: str, number: int, dtype: np.dtype[np.void]) -> None:
    assert pictures(section(heading))[number] == laid_out(dtype)


def test_lengths_are_those_of_the_codecs() -> None:
    def fixed(heading: str, number: int) -> int:
        return sum(_BYTES[kind] for offset, kind in pictures(section(heading))[number] if offset != "+" and kind != "s")

    assert fixed("Commit log", 0) == commit_log.FIXED_BYTES
    assert fixed("Commit log", 1) == commit_log.BLANK_BYTES
    assert fixed("Timer log", 1) == timer_log.BLANK_BYTES
    assert fixed("Timer check point", 0) == config_files.TIMER_CHECK_USED_BYTES
    assert fixed("Index file", 0) == index_file.HEADER_BYTES


def test_every_codec_has_its_picture() -> None:
    modules = {path.stem for path in Path(formats.__file__).parent.glob("*.py")} - {"__init__"}
    shared = {"binary_columns", "decimals", "messages"}
    assert sorted(name for name in modules - shared if f"`{name}`" not in FORMATS) == []


def test_a_receipt_begins_as_the_page_says() -> None:
    receipt = Receipt("orders", "g", 3, 104, 100, 1_700_000_000_000, 60_000, 2, "broker-a", 1, 5, 4660)
    assert receipt.text().startswith("100 1700000000000 60000 5 2 broker-a 3 104 4660 ")
