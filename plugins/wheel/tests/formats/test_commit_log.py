"""One record of the commit log, byte by byte, and what damage of it does."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, strategies as st

from plugins.wheel.tests.made_records import encode_record
from rmqstore.errors import CorruptStoreError, IllegalArgumentError
from rmqstore_wheel.formats import commit_log as log
from rmqstore_wheel.formats.commit_log import Record, decode_record

V4 = bytes.fromhex("c0a80001 00002a9f")  # 192.168.0.1, port 10911
V6 = bytes.fromhex("20010db8000000000000000000000001 00002a9f")  # 2001:db8::1

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
    born_host=V4,
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


def test_v1_bytes() -> None:
    assert encode_record(RECORD) == V1_BYTES
    assert decode_record(V1_BYTES) == RECORD


def test_v2_bytes_of_a_long_topic() -> None:
    topic = b"t" * 128
    expected = bytes.fromhex(
        "000000dd"  # 221 bytes: 92 + 1 of body, 128 of topic
        "daa320ab"  # magic V2
        "68b7be43"  # CRC-32 of "a" is e8b7be43; the top bit is cleared
        "00000000 00000000 0000000000000000 0000000000000000 00000000 0000000000000000"
        "7f00000100000000 0000000000000000 7f00000100000000 00000000 0000000000000000"
        "00000001"  # bytes of the body
        "61"  # a
        "0080" + "74" * 128 + "0000"  # bytes of the topic, two bytes  # no properties
    )
    assert encode_record(Record(topic=topic, body=b"a")) == expected
    assert decode_record(expected) == Record(topic=topic, body=b"a")


def test_127_bytes_of_topic_are_v1() -> None:
    assert encode_record(Record(topic=b"t" * 127, body=b"a"))[4:8].hex() == "daa320a7"


@pytest.mark.parametrize(("born", "store", "bits", "more"), [(V6, V4, 0x10, 12), (V4, V6, 0x20, 12), (V6, V6, 0x30, 24)])
def test_ipv6_hosts_are_longer_and_set_their_bits(born: bytes, store: bytes, bits: int, more: int) -> None:
    record = Record(topic=b"T", body=b"b", born_host=born, store_host=store, sys_flag=0x4)
    data = encode_record(record)
    assert len(data) == 93 + more
    assert int.from_bytes(data[36:40]) == 0x4 | bits
    assert data[48 : 48 + len(born)] == born
    assert data[56 + len(born) : 56 + len(born) + len(store)] == store
    read = decode_record(data)
    assert (read.born_host, read.store_host, read.sys_flag) == (born, store, 0x4 | bits)


def test_body_crc_is_31_bits() -> None:
    assert log.body_crc(b"123456789") == 0x4BF43926  # the check value of CRC-32 is cbf43926
    assert zlib.crc32(b"123456789") == 0xCBF43926


def test_blank_bytes() -> None:
    assert log.encode_blank(0x100) == bytes.fromhex("00000100 cbd43194")
    with pytest.raises(IllegalArgumentError, match="7 bytes are left"):
        log.encode_blank(7)


def test_room_for_a_blank_record_must_stay() -> None:
    assert log.fits(100, 108)
    assert not log.fits(100, 107)


def test_too_long_pieces_are_refused() -> None:
    with pytest.raises(IllegalArgumentError, match="32768 bytes; a record holds at most 32767"):
        log.Form(b"t").encode(b"b", bytes(32768), 0, 0, 0)
    with pytest.raises(IllegalArgumentError, match="32768 bytes; a record holds at most 32767"):
        log.Form(bytes(32768))


I32, I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
HOSTS = st.sampled_from([V4, V6, log.LOCAL_HOST])
RECORDS = st.builds(
    Record,
    topic=st.binary(max_size=300),
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
    queue_id=I32,
    queue_offset=I64,
    physical_offset=I64,
    born_ms=I64,
    store_ms=I64,
    reconsume_times=I32,
    flag=I32,
    sys_flag=st.integers(0, 15),
    prepared_offset=I64,
    born_host=HOSTS,
    store_host=HOSTS,
)


@given(RECORDS, st.binary(max_size=8), st.binary(max_size=8))
def test_round_trip_between_other_bytes(record: Record, before: bytes, after: bytes) -> None:
    read = decode_record(before + encode_record(record) + after, len(before))
    assert read.sys_flag & 15 == record.sys_flag
    read.sys_flag = record.sys_flag
    assert read == record


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("length", range(len(V1_BYTES)))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(CorruptStoreError) as caught:
        decode_record(V1_BYTES[:length], log_offset=0x1234)
    assert caught.value.offset == 0x1234


GUARDED = [*range(12), *range(28, 36), *range(84, 94), 95, 96]
"""Size, magic, CRC, physical offset, body with its length, lengths of topic and properties."""


@pytest.mark.parametrize("at", GUARDED)
@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_what_is_guarded_is_refused(at: int, bit: int) -> None:
    damaged = bytearray(V1_BYTES)
    damaged[at] ^= 1 << bit
    with pytest.raises(CorruptStoreError):
        decode_record(damaged, log_offset=0x1234)


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


def test_a_blank_record_is_no_message() -> None:
    with pytest.raises(CorruptStoreError, match="blank"):
        decode_record(log.encode_blank(200) + bytes(192))


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
