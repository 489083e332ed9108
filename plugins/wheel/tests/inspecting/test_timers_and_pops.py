"""Pending timers by due time and pops in flight, as exactly as the files tell; and the calls of rmqstore's engine."""

from __future__ import annotations

import pytest

from rmqstore.contract import Moment
from rmqstore_wheel.formats import check_points, config_files, timer_log
from rmqstore_wheel.formats.check_points import BatchAck, CheckPoint
from rmqstore_wheel.formats.config_files import ConsumerOffsets
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.inspecting.log import LogReader

from .conftest import NOW, REVIVE, Built, rows, section

MINUTE = 60_000
OLD_LOG = "commitlog/00000000000000000000"


def pending(store: Built, now_ms: int = NOW) -> dict[str, tuple[int, int]]:
    store.write()
    found = store.look(now_ms)
    assert found.damage == ()
    return {row["due"]: (row["timers"], row["of pops"]) for row in rows(found, "Pending") if row["timers"] or row["of pops"]}


# ---------------------------------------------------------------- timers


def test_buckets(empty: Built) -> None:
    for at in (1, 59, 60, 61, 299, 301, 901, 3599, 3601, 4 * 3600 + 1, 86_401):
        empty.timer("t", NOW + at * 1000, slot_ms=NOW + min(at, 3000) * 1000)
    assert pending(empty) == {
        "within 1 min": (3, 0),
        "within 5 min": (2, 0),
        "within 15 min": (1, 0),
        "within 1 h": (2, 0),
        "within 4 h": (1, 0),
        "within 24 h": (1, 0),
        "later": (1, 0),
        "in all": (11, 0),
    }


@pytest.mark.parametrize(
    ("read_until_ms", "expected"),
    [
        pytest.param(0, {"overdue": (1, 0), "within 1 min": (1, 0), "in all": (2, 0)}, id="overdue is what the wheel has not delivered"),
        pytest.param(20_000, {"within 1 min": (1, 0), "in all": (1, 0)}, id="what is delivered no longer waits"),
    ],
)
def test_overdue(empty: Built, read_until_ms: int, expected: dict[str, tuple[int, int]]) -> None:
    empty.timer("t", NOW + 10_000)
    empty.timer("t", NOW + 40_000)
    empty.check = config_files.TimerCheck(NOW + read_until_ms, empty.check.timer_log_position, 2)
    assert pending(empty, NOW + 20_000) == expected


def test_a_late_timer_that_the_wheel_has_not_read_waits(empty: Built) -> None:
    empty.append(WHEEL_TOPIC, REAL_TOPIC="t", TIMER_OUT_MS=NOW - 5000)
    empty.append(WHEEL_TOPIC, REAL_TOPIC="t", TIMER_OUT_MS=NOW - 5000)
    empty.check = config_files.TimerCheck(NOW, 0, 1)
    assert pending(empty) == {"overdue": (1, 0), "in all": (1, 0)}


@pytest.mark.parametrize(("key", "left"), [("t+id", 2), ("id", 2), ("u+id", 3)])
def test_a_cancel_takes_its_timer_away(empty: Built, key: str, left: int) -> None:
    empty.timer("t", NOW + 10_000, UNIQ_KEY="id")
    empty.timer("t", NOW + 10_000, UNIQ_KEY="other")
    empty.timer("t", NOW + 12_000, UNIQ_KEY="id")
    empty.timer("t", NOW + 10_000, b"0", flags=timer_log.DELETE | 1, TIMER_DEL_UNIQKEY=key)
    assert pending(empty) == {"within 1 min": (left, 0), "in all": (left, 0)}
    assert "Cancels that wait: 1" in section(empty.look(), "Pending").note


def test_a_timer_that_was_rolled_counts_once(empty: Built) -> None:
    """Its first unit lies in a slot that was read, and it was put again behind."""
    due = NOW + 5000_000
    empty.timer("t", due, flags=timer_log.ROLL | 1, slot_ms=NOW + 1000_000, UNIQ_KEY="id")
    assert pending(empty)["in all"] == (1, 0)
    empty.timer("t", due, slot_ms=NOW + 2000_000, UNIQ_KEY="id", TIMER_ROLL_TIMES=1)
    empty.check = config_files.TimerCheck(NOW + 1500_000, empty.check.timer_log_position, 2)
    assert pending(empty)["in all"] == (1, 0)


def test_without_a_check_point_only_what_is_not_due_counts(empty: Built) -> None:
    empty.timer("t", NOW + 10_000)
    empty.timer("t", NOW + 40_000)
    empty.write()
    (empty.path / "config/timercheck").unlink()
    found = empty.look(NOW + 20_000)
    assert rows(found, "Pending")[-1]["timers"] == 1
    assert "without config/timercheck" in section(found, "Pending").note


def test_a_timer_without_times_or_with_odd_ones(empty: Built) -> None:
    for out_ms in (None, "x", -5, 2**63 - 1, 2**70):
        empty.append(WHEEL_TOPIC, REAL_TOPIC="t", TIMER_OUT_MS=out_ms)
    empty.append(WHEEL_TOPIC, REAL_TOPIC="t", TIMER_DELIVER_MS=-(2**63))
    empty.write()
    assert empty.damage() == []


# ---------------------------------------------------------------- pops


def in_flight(store: Built) -> list[tuple[object, ...]]:
    store.write()
    found = store.look()
    assert found.damage == ()
    if not any(each.heading == "Pops in flight" for each in found.sections):
        return []
    return [tuple(row.values()) for row in rows(found, "Pops in flight")]


def point(**fields: object) -> CheckPoint:
    given = {"topic": "t", "group": "g", "queue_id": 0, "start_offset": 0, "pop_ms": NOW, "invisible_ms": MINUTE, "count": 3, "broker": "b"}
    return CheckPoint(**{**given, **fields})


def test_by_group_and_topic(empty: Built) -> None:
    """What is revived is no longer in flight; acks without a broker, acks of nothing, and pops of nothing."""
    empty.pop(point(group="f"))
    empty.pop(point(), acks=(1,))
    empty.pop(point(start_offset=3, pop_ms=NOW + 5, invisible_ms=2 * MINUTE))
    empty.pop(point(group="h", acked_bits=0b101))
    empty.pop(point(queue_id=1), acks=(0, 1, 2))
    empty.pop(point(group="i"))
    empty.append(REVIVE, check_points.encode_ack(BatchAck("t", "i", 0, 0, NOW, [0, 2])), TAGS="bAck")
    empty.append(REVIVE, check_points.encode_ack(BatchAck("t", "j", 0, 0, NOW, [0, 2])), TAGS="bAck")
    empty.pop(point(group="j", count=0))
    empty.offsets = ConsumerOffsets({f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": {0: 0}})
    assert in_flight(empty) == [
        ("g", "t", 2, 5, Moment(NOW + MINUTE), Moment(NOW + 5 + 2 * MINUTE)),
        ("h", "t", 1, 1, Moment(NOW + MINUTE), Moment(NOW + MINUTE)),
        ("i", "t", 1, 1, Moment(NOW + MINUTE), Moment(NOW + MINUTE)),
    ]


def test_a_brokers_check_points_wait_as_timers_first(empty: Built) -> None:
    """The copy in the revive topic comes a second before the pop ends, and its acks come after it."""
    body, end = check_points.encode_check_point(point()), NOW + MINUTE
    acks = [check_points.encode_ack(check_points.Ack("t", "g", 0, 0, NOW, offset, "b")) for offset in range(3)]
    empty.timer(REVIVE, end - 1000, body, TAGS="ck")
    assert [row[3] for row in in_flight(empty)] == [3]
    assert pending(empty) == {"within 1 min": (0, 1), "in all": (0, 1)}
    for ack in acks:
        empty.timer(REVIVE, end, ack, TAGS="ack")
    assert in_flight(empty) == []
    empty.append(REVIVE, body, TAGS="ck")
    assert in_flight(empty) == []
    empty.offsets = ConsumerOffsets({f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": {0: 0}})
    for ack in acks:
        empty.append(REVIVE, ack, TAGS="ack")
    assert in_flight(empty) == []


@pytest.mark.parametrize("tag", ["ck", "ack", "bAck"])
def test_a_body_that_is_none(empty: Built, tag: str) -> None:
    place = empty.append(REVIVE, b"{", TAGS=tag)
    empty.write()
    empty.see_damage(OLD_LOG, place, "")


# ---------------------------------------------------------------- calls of rmqstore's engine


def frame(count: int) -> str:
    return f"{count:x} 1f4 1 0 deadbeef"


@pytest.mark.parametrize(
    ("records", "note"),
    [
        ([None, frame(2), frame(1)], "2 whole, 0 torn."),
        ([frame(1), ""], "1 whole, 0 torn. 1 records behind"),
        ([frame(1), None, None], "1 whole, 0 torn. 2 records behind the last whole call"),
        ([None, frame(1), *[None] * 100, frame(2)], "2 whole, 0 torn. 100 records between them belong to no call"),
    ],
)
def test_whole_calls(empty: Built, records: list[str | None], note: str) -> None:
    for number, value in enumerate(records):
        empty.append("t", b"%d" % number, RMQS_FRAME=value)
    empty.write()
    found = empty.look()
    assert found.damage == ()
    assert "written by rmqstore" in found.title
    assert f"Calls of rmqstore's engine: {note}" in section(found, "Commit log").note


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ([None, frame(3)], "a call of 3 records ends here, but only 2 are there"),
        (["x"], "the property RMQS_FRAME is 'x'"),
        (["-1 2"], "a call of -1 records"),
        (["0 1"], "a call of 0 records"),
    ],
)
def test_torn_calls(empty: Built, records: list[str | None], what: str) -> None:
    places = [empty.append("t", RMQS_FRAME=value) for value in [frame(1), *records]]
    empty.write()
    empty.see_damage(OLD_LOG, places[-1], what)


@pytest.mark.parametrize("window_bytes", [1, 10_000])
def test_a_call_of_which_a_record_is_damaged_is_not_told_to_be_torn(
    empty: Built, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:  # fmt: skip
    empty.append("t", RMQS_FRAME=frame(1))
    place = empty.append("t")
    empty.append("t", RMQS_FRAME=frame(2))
    empty.write()
    empty.patch(OLD_LOG, place + 88, b"\xff")
    monkeypatch.setattr(LogReader.__init__, "__defaults__", (window_bytes,))
    assert empty.damage() == [(OLD_LOG, place), ("consumequeue/t/0/00000000000000000000", 20)]


def test_a_call_whose_start_was_reclaimed(empty: Built) -> None:
    for number in range(50):
        empty.append("t", b"%d" % number)
    empty.append("t", RMQS_FRAME=frame(51))
    empty.append("t", RMQS_FRAME=frame(1))
    empty.write()
    assert empty.damage() == []
    (empty.path / OLD_LOG).unlink()
    found = empty.look()
    assert found.damage == ()
    assert "1 whole, 1 torn" in section(found, "Commit log").note
