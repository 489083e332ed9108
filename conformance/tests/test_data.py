"""The hard values keep to the contract's limits, and are as alike as they say."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rmqstore import Message
from rmqstore.message import check_group, check_marks, check_message, check_topic
from rmqstore_conformance import data
from rmqstore_conformance.data import Data, Family
from rmqstore_conformance.histories import restless

COUNT = 300

FAMILIES: list[Any] = [
    pytest.param(kind, family, id=f"{kind}: {family.name}")
    for kind, families in (
        ("name", data.NAMES),
        ("id", data.IDS),
        ("key", data.KEYS),
        ("tag", data.TAGS),
        ("message group", data.MESSAGE_GROUPS),
        ("body", data.BODIES),
        ("mark", data.MARKS),
        ("born", data.BORN_TIMES),
        ("properties", data.PROPERTIES),
    )
    for family in families
]


def java_hash(text: str) -> int:
    found = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        found = (31 * found + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return found


@pytest.mark.parametrize(("kind", "family"), FAMILIES)
def test_members_are_legal_and_different(kind: str, family: Family[Any]) -> None:
    members = [family.member(index) for index in range(COUNT)]
    if kind != "properties":
        assert len(set(members)) == COUNT
    elif members[0]:
        assert len({repr(each) for each in members}) == COUNT
    for member in members:
        if kind == "name":
            check_topic(member)
            check_group(member)
        elif kind == "mark":
            check_marks([member])
        else:
            field = {"id": "message_id", "key": "keys", "message group": "message_group", "born": "born_ms"}.get(kind, kind)
            fields: dict[str, Any] = {"body": b"x", field: (member,) if kind == "key" else member}
            check_message(Message("t", **fields))


@pytest.mark.parametrize(("kind", "family"), FAMILIES)
def test_members_have_in_common_what_their_family_says(kind: str, family: Family[Any]) -> None:
    members = [family.member(index) for index in range(COUNT)]
    if "Java" in family.name:
        assert len({java_hash(member) for member in members}) == 1
    elif "CRC" in family.name:
        assert len({zlib.crc32(member if isinstance(member, bytes) else member.encode()) for member in members}) == 1
    elif "case" in family.name and kind != "properties":
        assert len({member.lower() for member in members}) == 1
    elif "at the limit" in family.name:
        assert {len(member if isinstance(member, bytes) else member.encode()) for member in members} == {
            {"name": 127, "key": data.LONG_WORD_BYTES, "tag": data.LONG_WORD_BYTES}.get(kind, 255)
        }


def test_all_that_a_message_may_be_given_has_room_together() -> None:
    for properties in data.PROPERTIES:
        for word in data.KEYS:
            keys = tuple(word.member(number) for number in range(3))
            made = Message("t" * 127, b"x", data.TAGS[-1].member(0), keys, properties.member(0), message_id=data.IDS[-1].member(0))
            check_message(made)


def test_glued_names_are_legal_and_make_one_text() -> None:
    for first, second, third, fourth in data.GLUED:
        for name in (first, second, third, fourth):
            check_topic(name)
        assert (first, second) != (third, fourth)
        assert any(first + sign + second == third + sign + fourth for sign in ("", "|", "-", "_", "%", "||")) or first == fourth


def test_a_label_keeps_its_value_and_an_id_tells_its_label() -> None:
    for seed in range(50):
        drawn = Data(str(seed))
        ids = [drawn.id(f"m{number}") for number in range(20)]
        assert len(set(ids)) == 20
        assert [drawn.label(each) for each in ids] == [f"m{number}" for number in range(20)]
        assert drawn.id("m3") == ids[3]
        assert drawn.topic("t") != drawn.topic("u")
        assert Data(str(seed)).topic("t") == drawn.topic("t")
    assert len({Data(str(seed)).topic("t") for seed in range(50)}) > 5


def test_threads_that_draw_at_once_get_members_of_their_own() -> None:
    for seed in range(20):
        drawn = Data(str(seed))

        def draw(thread: int, drawn: Data = drawn) -> list[str]:
            return [drawn.id(f"m{thread}-{n}") for n in range(100)]

        with restless(), ThreadPoolExecutor(4) as threads:
            found = [each for ids in threads.map(draw, range(4)) for each in ids]
        assert len(set(found)) == 400
        assert [drawn.label(each) for each in found] == [f"m{thread}-{n}" for thread in range(4) for n in range(100)]
