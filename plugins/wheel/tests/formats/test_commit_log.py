"""Records of the commit log: one byte by byte, batches with the same bytes as record by record, and what damage does."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from plugins.wheel.tests.made_records import ANY_RECORD, V6, encode_record
from rmqstore.errors import CorruptStoreError, IllegalArgumentError
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.formats.commit_log import Record, decode_record
from rmqstore_wheel.formats.log_columns import Columns, Encoded, encode_columns
from rmqstore_wheel.formats.log_reading import Stop, count_sound, decode_columns, scan

RECORD = Record(
    topic=b"T",
    body=b"hello",
    properties=b"KEYS\x01k\x02",
    queue_id=3,
    queue_offset=7,
    physical_offset=0x1234,
    born_ms=1_700_000_000_000,
    store_ms=1_700_000_000_001,
    reconsume_times=2,
    flag=9,
    prepared_offset=11,
    born_host=bytes.fromhex("c0a80001 00002a9f"),  # 192.168.0.1, port 10911
    store_host=log.LOCAL_HOST,
)
V1_BYTES = bytes.fromhex(
    "00000068"  # 104 bytes: 91 + 5 of body, 1 of topic, 7 of properties
    "daa320a7"  # magic V1
    "3610a686"  # CRC-32 of "hello", top bit clear already
    "00000003"  # queue id
    "00000009"  # flag
    "0000000000000007"  # queue offset
    "0000000000001234"  # physical offset
    "00000000"  # system flag
    "0000018bcfe56800"  # born: 1 700 000 000 000
    "c0a8000100002a9f"  # born host 192.168.0.1:10911
    "0000018bcfe56801"  # store time
    "7f00000100000000"  # store host 127.0.0.1:0
    "00000002"  # reconsume times
    "000000000000000b"  # prepared transaction offset
    "00000005"  # bytes of the body
    "68656c6c6f"  # hello
    "01"  # bytes of the topic, one byte
    "54"  # T
    "0007"  # bytes of the properties
    "4b455953016b02"  # KEYS U+0001 k U+0002
)


V2_BYTES = bytes.fromhex(
    "000000dd"  # 221 bytes: 92 + 1 of body, 128 of topic
    "daa320ab"  # magic V2
    "68b7be43"  # CRC-32 of "a" is e8b7be43; the top bit is cleared
    "00000000 00000000 0000000000000000 0000000000000000 00000000 0000000000000000"
    "7f00000100000000 0000000000000000 7f00000100000000 00000000 0000000000000000"
    "00000001"  # bytes of the body
    "61"  # a
    "0080" + "74" * 128 + "0000"  # bytes of the topic, two bytes  # no properties
)


@pytest.mark.parametrize(("record", "data"), [(RECORD, V1_BYTES), (Record(topic=b"t" * 128, body=b"a"), V2_BYTES)], ids=["V1", "V2"])
def test_bytes(record: Record, data: bytes) -> None:
    assert encode_record(record) == data
    assert decode_record(data) == record
    assert encode_record(Record(topic=b"t" * 127, body=b"a"))[4:8].hex() == "daa320a7", "the longest topic of V1"


def test_a_blank_record_fills_a_file_and_is_no_message() -> None:
    assert log.encode_blank(0x100) == bytes.fromhex("00000100 cbd43194")
    with pytest.raises(IllegalArgumentError, match="7 bytes are left"):
        log.encode_blank(7)
    assert [log.fits(100, left) for left in (108, 107)] == [True, False], "room for one must stay"
    with pytest.raises(CorruptStoreError, match="blank"):
        decode_record(log.encode_blank(200) + bytes(192))


def test_too_long_pieces_are_refused() -> None:
    with pytest.raises(IllegalArgumentError, match="32768 bytes; a record holds at most 32767"):
        log.Form(b"t").encode(b"b", bytes(32768), 0, 0, 0)
    with pytest.raises(IllegalArgumentError, match="32768 bytes; a record holds at most 32767"):
        log.Form(bytes(32768))


@given(ANY_RECORD, st.binary(max_size=8), st.binary(max_size=8))
def test_round_trip_between_other_bytes(record: Record, before: bytes, after: bytes) -> None:
    read = decode_record(before + encode_record(record) + after, len(before))
    assert read.sys_flag & 15 == record.sys_flag
    read.sys_flag = record.sys_flag
    assert read == record


# ---------------------------------------------------------------- damage


GUARDED = [*range(12), *range(28, 36), *range(84, 94), 95, 96]
"""Size, magic, CRC, physical offset, body with its length, lengths of topic and properties."""


DAMAGED = [V1_BYTES[:length] for length in range(len(V1_BYTES))]
DAMAGED += [V1_BYTES[:at] + bytes([V1_BYTES[at] ^ 1 << bit]) + V1_BYTES[at + 1 :] for at in GUARDED for bit in range(8)]


@pytest.mark.parametrize("damaged", DAMAGED)
def test_every_truncation_and_a_flipped_bit_in_what_is_guarded_are_refused(damaged: bytes) -> None:
    with pytest.raises(CorruptStoreError) as caught:
        decode_record(damaged, log_offset=0x1234)
    assert caught.value.offset == 0x1234


@pytest.mark.parametrize("at", sorted(set(range(len(V1_BYTES))) - set(GUARDED)))
def test_a_flipped_byte_elsewhere_never_reads_as_the_same_record(at: int) -> None:
    damaged = bytearray(V1_BYTES)
    damaged[at] ^= 0xFF
    try:
        assert decode_record(damaged, log_offset=0x1234) != RECORD
    except CorruptStoreError as error:
        assert error.offset == 0x1234


def test_a_record_that_was_written_for_another_place_is_refused() -> None:
    with pytest.raises(CorruptStoreError, match="written for offset 4660") as caught:
        decode_record(bytes(5) + V1_BYTES, 5, log_offset=1000)
    assert caught.value.offset == 1005


# ---------------------------------------------------------------- names of files


@pytest.mark.parametrize(
    ("offset", "name"), [(0, "00000000000000000000"), (1 << 30, "00000000001073741824"), (2**63 - 1, "09223372036854775807")]
)
def test_names(offset: int, name: str) -> None:
    assert log.file_name(offset) == name
    assert log.start_offset(name) == offset


@pytest.mark.parametrize("name", ["", "0", "0" * 19, "0" * 21, "x" * 20, "-0000000000000000001", "9" * 20, "٣" * 20])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(CorruptStoreError) as caught:
        log.start_offset(name)
    assert caught.value.file == name


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_no_file_starts_there(offset: int) -> None:
    with pytest.raises(IllegalArgumentError):
        log.file_name(offset)


NUMBERS = {"queue_id": 32, "queue_offset": 64, "born_ms": 64, "store_ms": 64, "reconsume_times": 32}
READ = ("topic", "body", "queue_id", "queue_offset", "physical_offset", "born_ms", "store_ms", "reconsume_times")


def binary(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary())


@st.composite
def batches(draw: st.DrawFn, min_rows: int = 0) -> Columns:
    """Any columns: each piece the same in all rows, equally long, or neither."""
    rows = draw(st.integers(min_rows, 6))

    def part(longest: int) -> Any:
        form = draw(st.sampled_from(["one", "equal", "any"]))
        if form == "one":
            return draw(st.binary(max_size=longest))
        size = draw(st.integers(0, longest))
        low, before = size if form == "equal" else 0, draw(st.integers(0, 1))
        column = binary([draw(st.binary(min_size=low, max_size=size)) for _ in range(before + rows)])
        return column.slice(before)  # a slice is written from its own start

    def number(bits: int) -> Any:
        values = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if draw(st.booleans()):
            return draw(values)
        return np.array([draw(values) for _ in range(rows)], f"i{bits // 8}")

    body = part(40)
    return Columns(
        topic=part(200),
        body=binary([body] * rows) if isinstance(body, bytes) else body,
        properties=[part(30) for _ in range(draw(st.integers(0, 3)))],
        **{name: number(bits) for name, bits in NUMBERS.items()},
    )


def cell(column: Any, row: int) -> Any:
    if isinstance(column, pa.Array):
        return column[row].as_py()
    return column[row].item() if isinstance(column, np.ndarray) else column


def record(columns: Columns, row: int) -> Record:
    """Return a row of columns as a record of this machine."""
    values = {name: cell(getattr(columns, name), row) for name in READ}
    return Record(**values, properties=b"".join(cell(each, row) for each in columns.properties))


def rows_of(columns: Columns) -> list[Record]:
    return [record(columns, row) for row in range(len(columns))]


def foreign(draw: st.DrawFn, own: Record) -> Record:
    """Return a record as another producer may have written it."""
    hosts, flags = st.sampled_from([V6, log.LOCAL_HOST]), st.sampled_from([0, 4, 8])
    return msgspec.structs.replace(own, born_host=draw(hosts), store_host=draw(hosts), sys_flag=draw(flags), flag=7, prepared_offset=9)


@settings(max_examples=300)
@given(batches())
def test_columns_give_the_bytes_of_their_records(columns: Columns) -> None:
    encoded = encode_columns(columns)
    records = [encode_record(record) for record in rows_of(columns)]
    assert encoded.data.tobytes() == b"".join(records)
    assert encoded.sizes.tolist() == [len(record) for record in records]
    assert encoded.starts.tolist() == [sum(map(len, records[:row])) for row in range(len(records))]
    encoded.place(5_000_000_000)
    placed = msgspec.structs.replace(columns, physical_offset=5_000_000_000 + encoded.starts)
    assert encoded.data.tobytes() == b"".join(map(encode_record, rows_of(placed)))


@settings(max_examples=300)
@given(batches(), st.binary(max_size=9), st.data())
def test_what_is_written_is_read(columns: Columns, before: bytes, data: st.DataObject) -> None:
    """Also where another producer wrote it: hosts and flags stay in the bytes, and what is read are the other fields."""
    records = [foreign(data.draw, each) for each in rows_of(columns)]
    pieces = [encode_record(each) for each in records]
    buffer = before + b"".join(pieces)
    found = scan(buffer, len(before))
    assert found.sizes.tolist() == [len(piece) for piece in pieces]
    assert (found.end, found.stop) == (len(buffer), Stop.END)
    assert count_sound(buffer, found.starts, found.sizes) == len(columns)
    order = data.draw(st.lists(st.integers(0, len(columns) - 1), max_size=8) if len(columns) else st.just([]))
    read = decode_columns(buffer, found.starts[order], found.sizes[order])
    assert rows_of(read) == [record(columns, row) for row in order]


def test_split_leaves_room_for_a_blank_record() -> None:
    encoded = encode_columns(Columns(topic=b"T", body=binary([b"12345678"] * 4)))  # 100 bytes each
    for room, count in ((107, 0), (108, 1), (207, 1), (208, 2), (408, 4), (10_000, 4), (0, 0)):
        first, rest = encoded.split(room)
        assert (len(first.sizes), len(rest.sizes)) == (count, 4 - count)
        assert first.data.tobytes() + rest.data.tobytes() == encoded.data.tobytes()
        assert rest.starts.tolist() == [100 * row for row in range(4 - count)]
        rest.place(1 << 30)
        if count < 4:
            read = decode_columns(rest.data, rest.starts, rest.sizes, log_offset=1 << 30)
            assert np.asarray(read.physical_offset).tolist() == [(1 << 30) + 100 * row for row in range(4 - count)]


def test_what_is_read_does_not_hold_the_buffer(tmp_path: Path) -> None:
    """A file's mapping can be closed while what was read from it is still in use."""
    encoded = sample()
    (tmp_path / "log").write_bytes(encoded.data.tobytes())
    with (tmp_path / "log").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        found = scan(mapping)
        assert count_sound(mapping, found.starts, found.sizes, log_offset=1000) == 3
        read = decode_columns(mapping, found.starts, found.sizes, log_offset=1000)
        one = log.decode_record(mapping, log_offset=1000)
    assert mapping.closed
    assert record(read, 0) == one


def test_batches_beyond_2_gib_take_wider_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered, so that the wider forms run here."""
    columns = Columns(topic=binary([b"T", b"UU"]), body=binary([b"a", b"bbb"]), properties=[b"p", binary([b"", b"q"])])
    expected = encode_columns(columns).data.tobytes()
    monkeypatch.setattr("rmqstore_wheel.formats.binary_columns.INT32_MAX", 10)
    monkeypatch.setattr("rmqstore.columns.INT32_MAX", 10)
    encoded = encode_columns(columns)
    assert encoded.data.tobytes() == expected
    read = decode_columns(expected, encoded.starts, encoded.sizes)
    assert rows_of(read) == rows_of(columns)


def test_too_long_properties_are_refused_with_their_row() -> None:
    columns = Columns(topic=b"T", body=binary([b"a", b"b"]), properties=[binary([b"", bytes(32_767)]), b"x"])
    with pytest.raises(IllegalArgumentError, match="row 1: the properties have 32768 bytes"):
        encode_columns(columns)


# ---------------------------------------------------------------- scanning


def sample() -> Encoded:
    encoded = encode_columns(Columns(topic=b"T", body=binary([b"first", b"second", b"third!!"]), properties=[b"a\x01b\x02"]))
    encoded.place(1000)
    return encoded


def stops_at(buffer: bytes) -> tuple[int, int, Stop]:
    found = scan(buffer)
    return len(found.starts), found.end, found.stop


def test_scan_says_what_comes_behind() -> None:
    data = sample().data.tobytes()
    end = len(data)
    assert stops_at(data) == (3, end, Stop.END)
    assert stops_at(data + log.encode_blank(50) + bytes(42)) == (3, end, Stop.BLANK)
    assert stops_at(data + bytes(100)) == (3, end, Stop.EMPTY)
    assert stops_at(data + bytes(5)) == (3, end, Stop.EMPTY)
    assert stops_at(data + b"\x01\x02\x03") == (3, end, Stop.TORN)
    assert stops_at(data + bytes.fromhex("0000006412345678")) == (3, end, Stop.DAMAGE)
    assert stops_at(data + bytes.fromhex("00000001daa320a7")) == (3, end, Stop.DAMAGE)
    assert stops_at(b"") == (0, 0, Stop.END)


def test_every_truncation_keeps_the_whole_records() -> None:
    encoded = sample()
    data = encoded.data.tobytes()
    ends = (encoded.starts + encoded.sizes).tolist()
    for length in range(len(data)):
        count, end, stop = stops_at(data[:length])
        whole = sum(each <= length for each in ends)
        assert (count, end) == (whole, ends[whole - 1] if whole else 0)
        assert stop is (Stop.END if length == end else Stop.TORN if any(data[end:length]) else Stop.EMPTY)


# ---------------------------------------------------------------- damage


@settings(max_examples=600)
@given(batches(min_rows=1), st.data())
def test_damage_is_found_as_record_by_record(columns: Columns, data: st.DataObject) -> None:
    """Whatever is written over a batch, the columns say the same as the records one by one, and no other error comes out."""
    encoded = encode_columns(columns)
    encoded.place(1000)
    damaged = bytearray(encoded.data.tobytes())
    row = data.draw(st.integers(0, len(columns) - 1))
    start, size = int(encoded.starts[row]), int(encoded.sizes[row])
    at = start + data.draw(st.integers(0, 120) | st.integers(0, size - 1)) % size
    garbage = data.draw(st.binary(min_size=1, max_size=40) | st.just(bytes((damaged[at] ^ 0x10,))))
    damaged[at : at + len(garbage)] = garbage[: len(damaged) - at]
    alone: list[Record] = []
    for start, size in zip(encoded.starts.tolist(), encoded.sizes.tolist(), strict=True):
        try:
            found = log.decode_record(damaged[: start + size], start, log_offset=1000)
        except CorruptStoreError:
            break
        if len(encode_record(found)) != size:
            break
        alone.append(found)
    sound = len(alone)
    read = decode_columns(damaged, encoded.starts[:sound], encoded.sizes[:sound], log_offset=1000)
    assert [[getattr(each, name) for name in (*READ, "properties")] for each in rows_of(read)] == [
        [getattr(each, name) for name in (*READ, "properties")] for each in alone
    ]
    assert count_sound(damaged, encoded.starts, encoded.sizes, log_offset=1000) == sound
    scanned = scan(damaged)
    assert count_sound(damaged, scanned.starts, scanned.sizes, log_offset=1000) == sound <= len(scanned.starts)
    if sound < len(columns):
        with pytest.raises(CorruptStoreError) as caught:
            decode_columns(damaged, encoded.starts, encoded.sizes, log_offset=1000)
        assert caught.value.offset == 1000 + encoded.starts[sound]


@pytest.mark.parametrize(("start", "size"), [(-1, 100), (0, 10), (0, 10_000), (1, 100), (0, 99), (10**12, 100), (0, -5)])
def test_an_index_that_points_nowhere_is_a_typed_error(start: int, size: int) -> None:
    with pytest.raises(CorruptStoreError):
        decode_columns(sample().data.tobytes(), np.array([start]), np.array([size]))


def test_crc_is_left_out_when_asked() -> None:
    encoded = sample()
    damaged = bytearray(encoded.data.tobytes())
    damaged[log.FIXED_BYTES] ^= 1
    read = decode_columns(damaged, encoded.starts, encoded.sizes, verify=False)
    assert record(read, 0).body == b"girst"
