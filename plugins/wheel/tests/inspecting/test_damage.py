"""Damage in every structural place is told with its file and offset, and nothing else is."""

from __future__ import annotations

import struct

import pytest

from plugins.wheel.tests.summed import summed
from rmqstore_wheel.formats import config_files, index_file
from rmqstore_wheel.formats.commit_log import Record
from rmqstore_wheel.formats.messages import WHEEL_TOPIC

from .conftest import INDEX_SLOTS, LOG_BYTES, NOW, RING, TIMER_BYTES, Built, ring_place, rows, slot_time_ms

LOG = "commitlog/00000000000000000000"
LOG_2 = f"commitlog/{LOG_BYTES:020d}"
QUEUE = "consumequeue/t/0/00000000000000000000"
UNITS = "timerlog/00000000000000000000"
CHECK = "config/timercheck"
OFFSETS = "config/consumerOffset.json"
INDEX = f"index/{index_file.file_name(NOW)}"


def place_of(store: Built, row: int, queue: tuple[str, int] = ("t", 0)) -> tuple[int, int]:
    """Return log offset and size of a message, as its unit says."""
    return struct.unpack_from(">qi", store.queues[queue], row * 20)


# ---------------------------------------------------------------- the commit log


def test_a_changed_body(broker: Built) -> None:
    place, _ = place_of(broker, 3)
    broker.patch(LOG, place + 88, b"\xff")
    found = broker.look()
    assert [(each.file, each.offset) for each in found.damage] == [(LOG, place), (QUEUE, 60)]
    assert "CRC-32" in found.damage[0].what
    first, second = rows(found, "Commit log")
    assert (first["valid up to"], first["where it ends"], first["records"]) == (place, "damage", 26)
    assert second["records"] == 7


def test_a_changed_property_beside_a_sum(empty: Built) -> None:
    empty.append("t")
    kept = summed(Record(topic=b"t", body=b"b", properties=b"mark\x01one\x02"))
    place = empty.append("t", b"b", mark="two", RMQS_CRC=kept.properties[-9:-1].decode())
    empty.append("t")
    empty.write()
    damage = empty.only_damage()
    assert (damage.file, damage.offset) == (LOG, place)
    assert "other times or properties" in damage.what


def test_a_changed_physical_offset(broker: Built) -> None:
    place, _ = place_of(broker, 3)
    broker.patch(LOG, place + 28 + 7, b"\x01")
    assert (LOG, place) in broker.damage()


def test_a_changed_magic_ends_the_file(broker: Built) -> None:
    place, _ = place_of(broker, 3)
    broker.patch(LOG, place + 4, b"\x00\x00\x00\x01")
    found = broker.look()
    assert (found.damage[0].file, found.damage[0].offset) == (LOG, place)
    assert "0x00000001" in found.damage[0].what
    assert [row["records"] for row in rows(found, "Commit log")] == [6, 7]


def test_a_record_that_reaches_beyond_its_file(broker: Built) -> None:
    place, _ = place_of(broker, 3)
    broker.patch(LOG, place, struct.pack(">i", LOG_BYTES))
    assert broker.damage()[0] == (LOG, place)


def test_a_record_of_an_absurd_size(broker: Built) -> None:
    place, _ = place_of(broker, 3)
    broker.patch(LOG, place, struct.pack(">i", 2**31 - 1))
    assert broker.damage()[0] == (LOG, place)


def test_a_hole_of_zeros_in_a_file(broker: Built) -> None:
    place, size = place_of(broker, 3)
    broker.patch(LOG, place, bytes(size))
    found = broker.look()
    assert (found.damage[0].file, found.damage[0].offset) == (LOG, place)
    assert f"from byte {place + size + 3}" in found.damage[0].what


def test_a_file_that_ends_early_before_another(broker: Built) -> None:
    place, _ = place_of(broker, 3)
    broker.patch(LOG, place, bytes(LOG_BYTES - place))
    assert broker.damage()[0] == (LOG, place)
    assert LOG_2.rpartition("/")[2] in broker.look().damage[0].what


def test_a_blank_record_of_another_length(broker: Built) -> None:
    at = LOG_BYTES - 1
    while broker.log[at] == 0xEE:
        at -= 1
    broker.patch(LOG, at - 7, struct.pack(">i", 5000))
    assert broker.damage() == [(LOG, at - 7)]


def test_a_file_cut_short(broker: Built) -> None:
    place, _ = place_of(broker, 3)
    with open(broker.path / LOG, "r+b") as file:
        file.truncate(place)
    assert broker.damage()[0] == (LOG, place)
    assert f"{place} bytes where {LOG_BYTES} are expected" in broker.look().damage[0].what


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


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (0, struct.pack(">q", 50 * LOG_BYTES), "no file of the commit log holds that offset"),
        (0, struct.pack(">q", 8000), "no sound record"),
        (0, struct.pack(">q", 17), "no sound record"),
        (8, struct.pack(">i", 100), "no sound record"),
        (8, struct.pack(">i", -3), "is none"),
        (0, struct.pack(">q", -8), "is none"),
    ],
)
def test_a_unit_that_leads_nowhere(broker: Built, at: int, value: bytes, what: str) -> None:
    broker.patch(QUEUE, 4 * 20 + at, value)
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == (QUEUE, 80)
    assert "queue offset 4" in damage.what
    assert what in damage.what


@pytest.mark.parametrize("other", [("t", 1), (WHEEL_TOPIC, 0)])
def test_a_unit_of_another_queue(broker: Built, other: tuple[str, int]) -> None:
    broker.patch(QUEUE, 80, bytes(broker.queues[other][:20]))
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == (QUEUE, 80)
    assert f"offset 0 of queue {other[1]} of topic {other[0]}" in damage.what


def test_a_unit_of_another_offset(broker: Built) -> None:
    broker.patch(QUEUE, 80, bytes(broker.queues["t", 0][:20]))
    assert broker.damage() == [(QUEUE, 80)]


def test_units_that_were_never_written(broker: Built) -> None:
    broker.patch(QUEUE, 60, bytes(40))
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == (QUEUE, 60)
    assert "3 to 4 were never written" in damage.what


def test_a_hole_across_two_files(empty: Built) -> None:
    for number in range(40):
        empty.append("t", b"%d" % number)
    empty.write()
    empty.patch(QUEUE, 14 * 20, bytes(40))
    second = f"consumequeue/t/0/{320:020d}"
    empty.patch(second, 0, bytes(60))
    damage = empty.only_damage()
    assert (damage.file, damage.offset) == (QUEUE, 280)
    assert "14 to 18 were never written" in damage.what


def test_a_queue_that_ends_within_a_unit(broker: Built) -> None:
    with open(broker.path / QUEUE, "r+b") as file:
        file.truncate(190)
    assert broker.damage() == [(QUEUE, 180)]


def test_many_of_a_kind_are_counted(broker: Built) -> None:
    for row in range(10):
        broker.patch(QUEUE, row * 20, struct.pack(">q", 50 * LOG_BYTES))
    assert len(broker.damage()) == 10
    queue = broker.queues["t", 0]
    for _ in range(6):
        queue += queue[:20]
    broker.write()
    for row in range(16):
        broker.patch(QUEUE, row * 20, struct.pack(">q", 50 * LOG_BYTES))
    assert len(broker.damage()) in (10, 11)


def test_offsets_behind_the_end(broker: Built) -> None:
    broker.offsets = config_files.ConsumerOffsets({"t@g": {0: 11, 1: 10}})
    broker.write()
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == (OFFSETS, None)
    assert damage.what == "t@g is at offset 11 of queue 0, which ends at 10"


# ---------------------------------------------------------------- the wheel


def slot_at(time_ms: int) -> int:
    return ring_place(RING, slot_time_ms(RING, time_ms)) * 32


def test_a_slot_that_leads_behind_the_timer_log(broker: Built) -> None:
    at = slot_at(NOW + 30_000)
    broker.patch("timerwheel", at + 16, struct.pack(">q", 52 * 15))
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == ("timerwheel", at)
    assert "behind the end of the timer log at 468" in damage.what


@pytest.mark.parametrize(
    ("position", "what"),
    [(52 * 6, "a unit of another slot"), (30, "where no unit is"), (0, "its newest unit lies at 208"), (TIMER_BYTES * 9, "behind the end")],
)
def test_a_slot_that_leads_astray(broker: Built, position: int, what: str) -> None:
    at = slot_at(NOW + 30_000)
    broker.patch("timerwheel", at + 16, struct.pack(">q", position))
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == ("timerwheel", at)
    assert what in damage.what


def test_a_slot_that_was_lost(broker: Built) -> None:
    at = slot_at(NOW + 30_000)
    broker.patch("timerwheel", at, bytes(32))
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == ("timerwheel", at)
    assert "knows nothing" in damage.what


def test_a_wheel_behind_the_timer_log_is_no_damage(broker: Built) -> None:
    """What came after the check point is put into the wheel again at the next start."""
    broker.patch("timerwheel", slot_at(NOW + 200_000), bytes(32))
    broker.patch("config/timercheck", 8, struct.pack(">q", 6 * 52))
    assert broker.damage() == []


def test_a_slot_of_a_foreign_tick(broker: Built) -> None:
    at = slot_at(NOW + 900_000)
    broker.patch("timerwheel", at, struct.pack(">q", 5))
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == ("timerwheel", at)
    assert "whose slot is 5" in damage.what


@pytest.mark.parametrize("length", [0, 1, 31, 33, 96])
def test_a_wheel_of_another_length(broker: Built, length: int) -> None:
    (broker.path / "timerwheel").write_bytes(bytes(length))
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == ("timerwheel", length)


# ---------------------------------------------------------------- the timer log


@pytest.mark.parametrize(
    ("previous", "what"),
    [
        (4 * 52, "in a circle"),
        (8 * 52, "in a circle"),
        (2**62, "in a circle"),
        (-9, "no position"),
        (-1, "leaves out the one at 104"),
        (0, "leaves out the one at 104"),
        (52, "another slot"),
        (53, "no unit is"),
    ],
)
def test_a_broken_chain(broker: Built, previous: int, what: str) -> None:
    broker.patch(UNITS, 4 * 52 + 4, struct.pack(">q", previous))
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == (UNITS, 4 * 52)
    assert what in damage.what


def test_a_chain_that_is_delivered_is_not_followed(broker: Built) -> None:
    broker.patch(UNITS, 4 * 52 + 4, struct.pack(">q", 4 * 52))
    broker.patch(CHECK, 0, struct.pack(">q", NOW + 100_000))
    assert broker.damage() == []


@pytest.mark.timeout(20)
def test_circles_end(broker: Built) -> None:
    for row in range(9):
        broker.patch(UNITS, row * 52 + 4, struct.pack(">q", (row + 3) % 9 * 52))
    assert {offset for file, offset in broker.damage() if file == UNITS} >= {row * 52 for row in range(6)}


@pytest.mark.parametrize(("at", "value"), [(0, b"\x00\x00\x00\x33"), (12, b"\x00\x00\x00\x10")])
def test_a_unit_that_is_none(broker: Built, at: int, value: bytes) -> None:
    broker.patch(UNITS, 5 * 52 + at, value)
    found = broker.look()
    assert (found.damage[0].file, found.damage[0].offset) == (UNITS, 5 * 52)
    (row,) = rows(found, "Timer log")
    assert (row["units"], row["where they end"]) == (5, "damage")


def test_a_hole_in_the_timer_log(broker: Built) -> None:
    broker.patch(UNITS, 5 * 52, bytes(52))
    assert broker.damage()[0] == (UNITS, 5 * 52)


def test_units_that_lead_out_of_the_log(broker: Built) -> None:
    broker.patch(UNITS, 5 * 52 + 28, struct.pack(">q", 7000))
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == (UNITS, 5 * 52)
    assert f"the commit log ends at {len(broker.log)}" in damage.what


def test_a_timer_whose_message_was_removed(empty: Built) -> None:
    empty.timer("t", NOW + 30_000)
    for number in range(60):
        empty.append("t", b"%d" % number)
    empty.write()
    (empty.path / LOG).unlink()
    damage = empty.only_damage()
    assert (damage.file, damage.offset) == (UNITS, 0)
    assert "lost" in damage.what


def test_a_blank_unit_of_another_length(empty: Built) -> None:
    for _ in range(25):
        empty.timer("t", NOW + 30_000)
    empty.write()
    assert empty.damage() == []
    empty.patch(UNITS, 20 * 52, struct.pack(">i", 17))
    assert empty.damage() == [(UNITS, 20 * 52)]


# ---------------------------------------------------------------- small files


@pytest.mark.parametrize("length", [0, 5, 55, 56, 4095])
def test_a_short_timer_check(broker: Built, length: int) -> None:
    data = (broker.path / CHECK).read_bytes()
    (broker.path / CHECK).write_bytes(data[:length])
    assert broker.damage() == [(CHECK, length)]


def test_a_timer_check_behind_the_timer_log(broker: Built) -> None:
    broker.check = config_files.TimerCheck(NOW, 99 * TIMER_BYTES, 9)
    broker.write()
    assert (CHECK, 8) in broker.damage()


def test_a_timer_check_of_garbage(broker: Built) -> None:
    broker.patch(CHECK, 0, b"\xff")
    assert broker.damage() == [(CHECK, 0)]


def test_a_short_check_point(broker: Built) -> None:
    (broker.path / "checkpoint").write_bytes(bytes(39))
    assert broker.damage() == [("checkpoint", 39)]


@pytest.mark.parametrize("name", ["consumerOffset.json", "timermetrics", "consumerOrderInfo.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
def test_a_json_file_that_cannot_be_read(broker: Built, name: str, content: bytes) -> None:
    path = broker.path / "config" / name
    good = path.read_bytes()
    path.write_bytes(content)
    assert [file for file, _ in broker.damage()] == [f"config/{name}"]
    path.with_name(name + ".bak").write_bytes(good)
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == (f"config/{name}", 0)
    assert "backup" in damage.what
    path.unlink()
    assert broker.damage() == []


# ---------------------------------------------------------------- the index


def entry_at(number: int) -> int:
    return 40 + INDEX_SLOTS * 4 + number * 20


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (16, struct.pack(">i", 3), "in a circle"),
        (16, struct.pack(">i", -1), "in a circle"),
        (4, struct.pack(">q", 9999), "not in the commit log"),
        (4, struct.pack(">q", -1), "not in the commit log"),
    ],
)
def test_an_entry_that_leads_nowhere(broker: Built, at: int, value: bytes, what: str) -> None:
    broker.patch(INDEX, entry_at(3) + at, value)
    damage = broker.only_damage()
    assert (damage.file, damage.offset) == (INDEX, entry_at(3))
    assert what in damage.what


def test_an_index_with_more_entries_than_room(broker: Built) -> None:
    broker.patch(INDEX, 36, struct.pack(">i", 33))
    assert broker.damage() == [(INDEX, 36)]


@pytest.mark.parametrize("length", [0, 39, 41, 700])
def test_an_index_of_another_length(broker: Built, length: int) -> None:
    with open(broker.path / INDEX, "r+b") as file:
        file.truncate(length)
    assert broker.damage() == [(INDEX, length)]
