"""Damage in every structural place is told with its file and offset, and nothing else is."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest

from plugins.wheel.tests.made_records import summed
from plugins.wheel.tests.stores import opened
from rmqstore import Message
from rmqstore_wheel.formats import config_files, index_file
from rmqstore_wheel.formats.commit_log import Record
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.inspecting import inspect

from .conftest import INDEX_SLOTS, LOG_BYTES, NOW, RING, TIMER_BYTES, Built, fill, ring_place, rows, slot_time_ms

LOG = "commitlog/00000000000000000000"
LOG_2 = f"commitlog/{LOG_BYTES:020d}"
QUEUE = "consumequeue/t/0/00000000000000000000"
UNITS = "timerlog/00000000000000000000"
WHEEL = "timerwheel"
CHECK = "config/timercheck"
OFFSETS = "config/consumerOffset.json"
INDEX = f"index/{index_file.file_name(NOW)}"

KNOWN = Built(Path())
"""What the store ``broker`` is filled with."""
fill(KNOWN)

PLACE, SIZE = struct.unpack_from(">qi", KNOWN.queues["t", 0], 3 * 20)
"""Where in the log the message at queue offset 3 of queue 0 of topic t is."""

BLANK_AT = len(bytes(KNOWN.log[:LOG_BYTES]).rstrip(b"\xee")) - 8
UNIT_4, ENTRY_3 = 4 * 52, 40 + INDEX_SLOTS * 4 + 3 * 20


def slot_at(time_ms: int) -> int:
    return ring_place(RING, slot_time_ms(RING, time_ms)) * 32


SLOT, UNUSED_SLOT = slot_at(NOW + 30_000), slot_at(NOW + 900_000)


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


@pytest.mark.parametrize(
    ("file", "at", "value", "told_at", "what"),
    [
        pytest.param(LOG, BLANK_AT, i32(5000), BLANK_AT, "5000 bytes are left", id="a blank record of another length"),
        (QUEUE, 80, i64(50 * LOG_BYTES), 80, "queue offset 4 leads to log offset 204800: no file of the commit log holds that offset"),
        (QUEUE, 80, i64(8000), 80, "no sound record"),
        (QUEUE, 80, i64(17), 80, "no sound record"),
        (QUEUE, 88, i32(100), 80, "no sound record"),
        (QUEUE, 88, i32(-3), 80, "queue offset 4 is none"),
        (QUEUE, 80, i64(-8), 80, "queue offset 4 is none"),
        (QUEUE, 80, bytes(KNOWN.queues["t", 1][:20]), 80, "offset 0 of queue 1 of topic t"),
        (QUEUE, 80, bytes(KNOWN.queues[WHEEL_TOPIC, 0][:20]), 80, f"offset 0 of queue 0 of topic {WHEEL_TOPIC}"),
        (QUEUE, 80, bytes(KNOWN.queues["t", 0][:20]), 80, "offset 0 of queue 0 of topic t"),
        (QUEUE, 60, bytes(40), 60, "3 to 4 were never written"),
        (WHEEL, SLOT + 16, i64(52 * 15), SLOT, "behind the end of the timer log at 468"),
        (WHEEL, SLOT + 16, i64(52 * 6), SLOT, "a unit of another slot"),
        (WHEEL, SLOT + 16, i64(30), SLOT, "where no unit is"),
        (WHEEL, SLOT + 16, i64(0), SLOT, "its newest unit lies at 208"),
        (WHEEL, SLOT + 16, i64(TIMER_BYTES * 9), SLOT, "behind the end"),
        (WHEEL, SLOT, bytes(32), SLOT, "knows nothing"),
        (WHEEL, SLOT + 24, i32(4), SLOT, "counts 4 timers, but 3 were put there"),
        (WHEEL, UNUSED_SLOT, i64(5), UNUSED_SLOT, "whose slot is 5"),
        (UNITS, UNIT_4 + 4, i64(UNIT_4), UNIT_4, "in a circle"),
        (UNITS, UNIT_4 + 4, i64(8 * 52), UNIT_4, "in a circle"),
        (UNITS, UNIT_4 + 4, i64(2**62), UNIT_4, "in a circle"),
        (UNITS, UNIT_4 + 4, i64(-9), UNIT_4, "no position"),
        (UNITS, UNIT_4 + 4, i64(-1), UNIT_4, "leaves out the one at 104"),
        (UNITS, UNIT_4 + 4, i64(0), UNIT_4, "leaves out the one at 104"),
        (UNITS, UNIT_4 + 4, i64(52), UNIT_4, "another slot"),
        (UNITS, UNIT_4 + 4, i64(53), UNIT_4, "no unit is"),
        (UNITS, UNIT_4 + 28, i64(7000), UNIT_4, f"the commit log ends at {len(KNOWN.log)}"),
        (CHECK, 0, b"\xff", 0, "is negative"),
        (INDEX, ENTRY_3 + 16, i32(3), ENTRY_3, "in a circle"),
        (INDEX, ENTRY_3 + 16, i32(-1), ENTRY_3, "in a circle"),
        (INDEX, ENTRY_3 + 4, i64(9999), ENTRY_3, "not in the commit log"),
        (INDEX, ENTRY_3 + 4, i64(-1), ENTRY_3, "not in the commit log"),
        (INDEX, 36, i32(33), 36, "33 of 32"),
    ],
)
def test_wrong_bytes_are_told_and_nothing_else(broker: Built, file: str, at: int, value: bytes, told_at: int, what: str) -> None:
    broker.patch(file, at, value)
    broker.see_damage(file, told_at, what)


@pytest.mark.parametrize(
    ("file", "at", "value", "told_at", "what"),
    [
        pytest.param(LOG, PLACE + 28 + 7, b"\x01", PLACE, "was written for offset", id="physical offset"),
        pytest.param(LOG, PLACE, i32(LOG_BYTES), PLACE, "does not end within the file", id="a record beyond its file"),
        pytest.param(LOG, PLACE, i32(2**31 - 1), PLACE, "does not end within the file", id="an absurd size"),
        pytest.param(LOG, PLACE, bytes(SIZE), PLACE, f"from byte {PLACE + SIZE + 3}", id="a hole"),
        pytest.param(LOG, PLACE, bytes(LOG_BYTES - PLACE), PLACE, LOG_2.rpartition("/")[2], id="a file that ends early before another"),
        pytest.param(UNITS, 5 * 52, bytes(52), 5 * 52, "zeros where a unit is expected", id="a hole in the timer log"),
    ],
)
def test_the_first_of_what_is_told(broker: Built, file: str, at: int, value: bytes, told_at: int, what: str) -> None:
    """What follows in the file is not read, so units that lead there are told too."""
    broker.patch(file, at, value)
    broker.see_damage(file, told_at, what, only=False)


@pytest.mark.parametrize(
    ("file", "length", "told_at"),
    [
        (LOG, PLACE, PLACE),
        (QUEUE, 190, 180),
        *((WHEEL, length, length) for length in (0, 1, 31, 33, 96)),
        *((CHECK, length, length) for length in (0, 5, 55, 56, 4095)),
        ("checkpoint", 39, 39),
        *((INDEX, length, length) for length in (0, 39, 41, 700)),
    ],
)
def test_a_file_of_another_length(broker: Built, file: str, length: int, told_at: int) -> None:
    os.truncate(broker.path / file, length)
    first, *others = broker.damage()
    assert first == (file, told_at)
    assert not others or file == LOG, "units that lead to what was cut off"


# ---------------------------------------------------------------- the commit log


def test_a_changed_body(broker: Built) -> None:
    broker.patch(LOG, PLACE + 88, b"\xff")
    found = broker.look()
    assert [(each.file, each.offset) for each in found.damage] == [(LOG, PLACE), (QUEUE, 60)]
    assert "CRC-32" in found.damage[0].what
    first, second = rows(found, "Commit log")
    assert (first["valid up to"], first["where it ends"], first["records"]) == (PLACE, "damage", 26)
    assert second["records"] == 7


def test_a_changed_property_beside_a_sum(empty: Built) -> None:
    empty.append("t")
    kept = summed(Record(topic=b"t", body=b"b", properties=b"mark\x01one\x02"))
    place = empty.append("t", b"b", mark="two", RMQS_CRC=kept.properties[-9:-1].decode())
    empty.append("t")
    empty.write()
    empty.see_damage(LOG, place, "other times or properties")


def test_a_changed_magic_ends_the_file(broker: Built) -> None:
    broker.patch(LOG, PLACE + 4, b"\x00\x00\x00\x01")
    found = broker.look()
    assert (found.damage[0].file, found.damage[0].offset) == (LOG, PLACE)
    assert f"0x{SIZE:08x}00000001" in found.damage[0].what
    assert [row["records"] for row in rows(found, "Commit log")] == [6, 7]


def test_a_missing_file(empty: Built) -> None:
    for number in range(110):
        empty.append("t", b"%d" % number)
    empty.write()
    (empty.path / LOG_2).unlink()
    last = f"commitlog/{2 * LOG_BYTES:020d}"
    assert (last, None) in empty.damage()
    assert all(file == last or file.startswith("consumequeue/t/0/") for file, _ in empty.damage())


def test_a_file_under_a_foreign_name_is_given_up(empty: Built) -> None:
    """Every record of it says that it lies elsewhere; reading it to its end would take for ever in a large one."""
    for number in range(300):
        empty.append("t", b"%d" % number)
    empty.path.joinpath("commitlog").mkdir(parents=True)
    empty.path.joinpath(LOG).write_bytes(empty.log[LOG_BYTES : 2 * LOG_BYTES])
    found = empty.look()
    assert found.damage[0] == type(found.damage[0])(LOG, 0, f"no sound record at offset 0: the record was written for offset {LOG_BYTES}")
    assert len(found.damage) <= 13
    assert found.damage[-1].what.endswith("more: records that are not sound")


# ---------------------------------------------------------------- consume queues


def test_a_hole_across_two_files(empty: Built) -> None:
    for number in range(40):
        empty.append("t", b"%d" % number)
    empty.write()
    empty.patch(QUEUE, 14 * 20, bytes(40))
    second = f"consumequeue/t/0/{320:020d}"
    empty.patch(second, 0, bytes(60))
    empty.see_damage(QUEUE, 280, "14 to 18 were never written")


def test_offsets_behind_the_end(broker: Built) -> None:
    broker.offsets = config_files.ConsumerOffsets({"t@g": {0: 11, 1: 10}})
    broker.write()
    broker.see_damage(OFFSETS, None, "t@g is at offset 11 of queue 0, which ends at 10")


# ---------------------------------------------------------------- timers


@pytest.mark.parametrize(
    "patches",
    [
        pytest.param([(WHEEL, slot_at(NOW + 200_000), bytes(32)), (CHECK, 8, i64(6 * 52))], id="what the next start puts into the wheel"),
        pytest.param([(UNITS, UNIT_4 + 4, i64(UNIT_4)), (CHECK, 0, i64(NOW + 100_000))], id="a chain that is delivered"),
    ],
)
def test_what_a_check_point_makes_no_damage(broker: Built, patches: list[tuple[str, int, bytes]]) -> None:
    for patch in patches:
        broker.patch(*patch)
    assert broker.damage() == []


@pytest.mark.parametrize(("at", "value"), [(0, b"\x00\x00\x00\x33"), (12, b"\x00\x00\x00\x10")])
def test_a_unit_that_is_none(broker: Built, at: int, value: bytes) -> None:
    broker.patch(UNITS, 5 * 52 + at, value)
    found = broker.look()
    assert (found.damage[0].file, found.damage[0].offset) == (UNITS, 5 * 52)
    (row,) = rows(found, "Timer log")
    assert (row["units"], row["where they end"]) == (5, "damage")


def test_a_timer_whose_message_was_removed(empty: Built) -> None:
    empty.timer("t", NOW + 30_000)
    for number in range(60):
        empty.append("t", b"%d" % number)
    empty.write()
    (empty.path / LOG).unlink()
    empty.see_damage(UNITS, 0, "lost")


def test_a_blank_unit_of_another_length(empty: Built) -> None:
    for _ in range(25):
        empty.timer("t", NOW + 30_000)
    empty.write()
    assert empty.damage() == []
    empty.patch(UNITS, 20 * 52, i32(17))
    assert empty.damage() == [(UNITS, 20 * 52)]


def test_a_timer_check_behind_the_timer_log(broker: Built) -> None:
    broker.check = config_files.TimerCheck(NOW, 99 * TIMER_BYTES, 9)
    broker.write()
    assert (CHECK, 8) in broker.damage()


# ---------------------------------------------------------------- JSON files


@pytest.mark.parametrize("name", ["consumerOffset.json", "timermetrics", "consumerOrderInfo.json"])
@pytest.mark.parametrize("content", [b"", b" \n", b"\0\0\0", b"{", b"[]", b"\xff\xfe"])
def test_a_json_file_that_cannot_be_read(broker: Built, name: str, content: bytes) -> None:
    path = broker.path / "config" / name
    good = path.read_bytes()
    path.write_bytes(content)
    assert broker.damage() == ([(f"config/{name}", None)] if content.strip() else [])
    path.with_name(name + ".bak").write_bytes(b"{")
    assert broker.damage() == [(f"config/{name}", None)]
    path.with_name(name + ".bak").write_bytes(good)
    broker.see_damage(f"config/{name}", 0, "backup")
    path.unlink()
    assert broker.damage() == []


# ---------------------------------------------------------------- rmqstore's own


def test_a_store_without_its_log_is_damaged(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.send(Message("t", b"x"))
    shutil.rmtree(tmp_path / "store" / "wheel" / "db" / "commitlog")
    found = inspect(tmp_path / "store" / "wheel")
    assert found is not None
    assert [each.file for each in found.damage] == ["db/commitlog"]
