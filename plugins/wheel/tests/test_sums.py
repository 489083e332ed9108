"""Sums of records: the same by the column and alone, any other byte is seen, and what becomes of a message whose sum is wrong (R6, T12)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from plugins.wheel.tests.made_records import ANY_RECORD, FRAME, ROOM, V6, encode_record, summed, with_room
from plugins.wheel.tests.stores import WheelStores
from rmqstore import CorruptStoreError, Store
from rmqstore.errors import FormatVersionError
from rmqstore.message import PARKED_TOPIC
from rmqstore_conformance.damaging import damage_timers
from rmqstore_conformance.stores import message
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.formats.commit_log import Record, decode_record
from rmqstore_wheel.formats.log_columns import joined
from rmqstore_wheel.formats.log_reading import scan
from rmqstore_wheel.log import frames
from rmqstore_wheel.log.commit_log import CommitLog
from rmqstore_wheel.queues.soundness import fault_of, gather, sound_rows
from rmqstore_wheel.records import sums
from rmqstore_wheel.records.parts import parts_of

RECORDS = st.lists(ANY_RECORD, min_size=1, max_size=8) | st.builds(lambda record, count: [record] * count, ANY_RECORD, st.integers(1, 5))


def text_of(record: bytes) -> int:
    """Return where the properties start."""
    return parts_of(record)[3] + 2


# ---------------------------------------------------------------- the property


@settings(max_examples=150)
@given(RECORDS, st.lists(st.booleans(), min_size=8, max_size=8))
def test_sums_are_what_the_page_says_by_both_ways(made: list[Record], framed: list[bool]) -> None:
    """Also before the property of a frame; records of a broker have none, and none that is wrong."""
    assert (ROOM, 18, len(FRAME)) == (sums.ROOM, sums.PROPERTY_BYTES, frames.PROPERTY_BYTES)
    expected = [encode_record(summed(record)) for record in made]
    empty = [encode_record(with_room(record)) for record in made]
    encoded = joined(empty)
    sums.fill(encoded)
    assert encoded.data.tobytes() == b"".join(expected)
    assert [sums.sealed(record, text_of(record)) for record in empty] == expected
    for record, sealed in zip(map(bytearray, empty), expected, strict=True):
        sums.seal(record, text_of(record))
        assert record == sealed
    ours = [encode_record(summed(record, FRAME * ends)) for record, ends in zip(made, framed, strict=False)]
    for record, ends in zip(ours, framed, strict=False):
        assert sums.text_end(record) == len(record) - sums.PROPERTY_BYTES - len(FRAME) * ends
    both = [*ours, *map(encode_record, made)]
    are_ours = [True] * len(made) + [False] * len(made)
    assert [sums.is_good(record, text_of(record)) for record in both] == are_ours
    held = joined(both)
    texts = held.starts + np.array([text_of(record) for record in both])
    assert sums.good_rows(held.data, held.starts, texts, held.starts + held.sizes).tolist() == are_ours
    assert not sums.wrong_rows(held.data, held.starts, held.sizes).any()


# ---------------------------------------------------------------- in a store


def records_of(stores: WheelStores, store: Store) -> list[Record]:
    (file,) = (stores.path(store) / "commitlog").iterdir()
    content = file.read_bytes()
    return [decode_record(content, start, log_offset=0) for start in scan(content).starts.tolist()]


def test_every_message_has_a_sum_and_no_journal_record(stores: WheelStores) -> None:
    store = stores.open()
    store.send_batch([message(n) for n in range(60)], delay_ms=1000)
    store.cancel(store.send(message("gone"), delay_ms=2000).handle)
    store.send_batch([message(f"now{n}") for n in range(3)])
    stores.clock.advance(1000)
    store.tick()
    store.pop("t", "g", max_messages=5, invisible_ms=1000)
    stores.clock.advance(1000)
    store.tick()
    store.close()
    topics: dict[str, set[bool]] = {}
    for record in records_of(stores, store):
        encoded = encode_record(record)
        topics.setdefault(record.topic.decode(), set()).add(sums.is_good(encoded, text_of(encoded)))
    unread = {topic: found for topic, found in topics.items() if topic.startswith("rmq_sys_r") or "REVIVE" in topic}
    assert all(found == {False} for found in unread.values())
    assert len(unread) == 2
    read = {topic: found for topic, found in topics.items() if topic not in unread}
    assert all(found == {True} for found in read.values())
    assert {"t", "rmq_sys_wheel_timer", "%RETRY%g+t"} <= read.keys()


def test_what_is_asked_of_a_timer_with_another_property(stores: WheelStores) -> None:
    store = stores.open()
    store.send_batch([message(n, properties={"mark": f"mark {n}"}) for n in range(5)], delay_ms=1000)
    store = stores.reopen(store)
    handles = [each.handle for each in store.scan().timers]
    damage_timers(store, b"mark 2")
    found = store.engine.timers.get(handles[2])
    assert found is not None
    assert (found.message.topic, found.handle) == (PARKED_TOPIC, handles[2])
    assert "times and properties" in found.message.properties["PARKED_REASON"]
    assert [each.message.topic for each in store.scan().timers] == ["t", "t", PARKED_TOPIC, "t", "t"]
    with pytest.raises(CorruptStoreError, match=r"timer 3: .*times and properties") as caught:
        store.engine.timers.export_state("timers", None, 10)
    assert caught.value.file
    assert caught.value.offset


def test_a_store_whose_messages_have_no_sums_is_refused(stores: WheelStores) -> None:
    store = stores.open()
    store.close()
    file = stores.path(store) / "FORMAT"
    assert file.read_text() == "rmqstore wheel 2\n"
    file.write_text("rmqstore wheel 1\n")
    with pytest.raises(FormatVersionError, match=r"reads 2$"):
        stores.open()


TOPIC = b"orders"


def written(path: Path, records: list[Record]) -> tuple[CommitLog, np.ndarray, np.ndarray]:
    log = CommitLog(Disk(), path, 64 * 1024)
    places = log.plan(frames.with_room(joined([encode_record(summed(each)) for each in records])))
    log.write(places, 1)
    starts, sizes = zip(*((offset + piece.starts, piece.sizes) for offset, piece in places), strict=True)
    return log, np.concatenate(starts), np.concatenate(sizes)


def faults(log: CommitLog, starts: np.ndarray, sizes: np.ndarray, topic: bytes = TOPIC, queue: int = 2) -> list[str | None]:
    pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
    return [fault_of(log.record(start, size), start, topic, queue, at) for at, (start, size) in enumerate(pairs)]


def test_another_topic_queue_or_number_is_seen(tmp_path: Path) -> None:
    records = [Record(topic=TOPIC, body=b"b", queue_id=2, queue_offset=at) for at in range(20)]
    log, starts, sizes = written(tmp_path / "commitlog", records)
    numbers = np.arange(20)
    assert sound_rows(log, 0, starts, sizes, TOPIC, 2, numbers).all()
    assert not sound_rows(log, 0, starts, sizes, b"others", 2, numbers).any()
    assert not sound_rows(log, 0, starts, sizes, b"order", 2, numbers).any()
    assert not sound_rows(log, 0, starts, sizes, TOPIC, 1, numbers).any()
    assert not sound_rows(log, 0, starts, sizes, TOPIC, 2, numbers + 1).any()
    assert not sound_rows(log, 0, starts + 1, sizes, TOPIC, 2, numbers).any()
    assert sound_rows(log, 0, np.append(starts, log.tail), np.append(sizes, 100), TOPIC, 2, np.arange(21)).tolist() == [True] * 20 + [False]
    assert not sound_rows(log, 64 * 1024, starts, sizes, TOPIC, 2, numbers).any()


@given(st.permutations(range(30)), st.integers(1, 30), st.sets(st.integers(0, 29)), st.sampled_from([0, 40, 300]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_records_are_gathered_as_they_lie(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], count: int, broken: set[int], longer: int
) -> None:
    records = [Record(topic=TOPIC, body=b"b" * (50 + at % 7 * longer), queue_id=2, queue_offset=at) for at in range(30)]
    log, starts, sizes = written(tmp_path_factory.mktemp("log") / "commitlog", records)
    for at in broken:
        log.chain.write_at(int(starts[at]) + 90, b"?")
    rows = np.array(order[:count])
    found = gather(log, 0, starts[rows], sizes[rows], TOPIC, 2, rows)
    assert found.sound.tolist() == [row not in broken for row in rows.tolist()]
    for row, start, sound in zip(rows.tolist(), found.starts.tolist(), found.sound.tolist(), strict=True):
        if sound:
            size = int(sizes[row])
            assert found.data[start : start + size].tobytes() == bytes(log.chain.read(int(starts[row]), size))
    assert gather(log, 0, np.append(starts[rows], log.tail), np.append(sizes[rows], 100), TOPIC, 2, np.append(rows, 30)).sound.tolist() == [
        *found.sound.tolist(),
        False,
    ]
    log.close()


def test_nothing_behind_the_end_of_the_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner may cut the file off there, and a map of what is gone cannot be read (SIGBUS)."""
    records = [Record(topic=TOPIC, body=b"b" * (10 if at else 1500), queue_id=2, queue_offset=at) for at in range(30)]
    log, starts, sizes = written(tmp_path / "commitlog", records)
    rows = np.arange(30)[::-1]
    whole = bytes(log.chain.view(0)[: log.tail])
    for behind in (b"", b"\xff" * 4000):
        monkeypatch.setattr(type(log.chain), "view", lambda self, start, upto=None, behind=behind: memoryview(whole + behind))
        found = gather(log, 0, starts[rows], sizes[rows], TOPIC, 2, rows)
        assert found.sound.all()
        assert b"\xff" * 8 not in found.data.tobytes()


def test_hosts_of_the_other_length_are_left_to_the_single_look(tmp_path: Path) -> None:
    records = [Record(topic=TOPIC, body=b"b", queue_id=2, queue_offset=0, born_host=V6)]
    log, starts, sizes = written(tmp_path / "commitlog", records)
    assert not sound_rows(log, 0, starts, sizes, TOPIC, 2, np.arange(1)).any()
    assert faults(log, starts, sizes) == [None]


TEXT = st.lists(st.tuples(st.text("ab", min_size=1), st.text("cd", min_size=1)).map("\x01".join), max_size=4).map(
    lambda entries: "".join(f"{entry}\x02" for entry in entries).encode()
)


@given(st.lists(st.tuples(TEXT, st.integers(0, 2**62), st.integers(0, 3)), min_size=1, max_size=12), st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_other_byte_that_matters_is_seen(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[bytes, int, int]], data: st.DataObject
) -> None:
    records = [
        Record(
            topic=TOPIC, body=b"body", properties=text, queue_id=2, queue_offset=at, born_ms=born, store_ms=born + 5, reconsume_times=tries
        )
        for at, (text, born, tries) in enumerate(drawn)
    ]
    log, starts, sizes = written(tmp_path_factory.mktemp("log") / "commitlog", records)
    assert sound_rows(log, 0, starts, sizes, TOPIC, 2, np.arange(len(records))).all()
    row = data.draw(st.integers(0, len(records) - 1))
    # All but the flag of the application, and the numbers of the frame, which is nobody's business here.
    last = frames.PROPERTY_BYTES if row == len(records) - 1 else 0
    places = [*range(16), *range(20, int(sizes[row]) - last), *range(int(sizes[row]) - last, int(sizes[row]) - last + len(frames.PROPERTY))]
    place = int(starts[row]) + data.draw(st.sampled_from([at for at in places if at < sizes[row]]))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != log.chain.read(place, 1)[0]))
    log.chain.write_at(place, bytes((byte,)))
    expected = [at != row for at in range(len(records))]
    assert sound_rows(log, 0, starts, sizes, TOPIC, 2, np.arange(len(records))).tolist() == expected
    assert [fault is None for fault in faults(log, starts, sizes)] == expected
    log.close()


def test_numbers_of_a_frame_may_be_wrong_but_are_no_property_of_a_user(tmp_path: Path) -> None:
    log, starts, sizes = written(tmp_path / "commitlog", [Record(topic=TOPIC, body=b"b", queue_id=2, queue_offset=0)])
    end = int(starts[0] + sizes[0])
    for content, is_sound in ((b"x", True), (b"\x01", True), (b"\x02", False), (b"\x02a\x01b\x02", False)):
        log.chain.write_at(end - 20, content)
        assert sound_rows(log, 0, starts, sizes, TOPIC, 2, np.arange(1)).tolist() == [is_sound]
        assert (faults(log, starts, sizes) == [None]) is is_sound
    log.close()
