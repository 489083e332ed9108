"""Picking by filter gives what the filter says of each message."""

from __future__ import annotations

from bisect import bisect

import hypothesis.strategies as st
from hypothesis import given

from rmqstore import Message
from rmqstore.engine import records as record_format
from rmqstore.engine.pops.lease import picker_of
from rmqstore.engine.records import encode_message, property_texts
from rmqstore.filters import parse_filter

NAMES = ("a", "b.c", "a\\", "é", "TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY")
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=5)
words = st.text("abc0.1-", min_size=1, max_size=4)
messages = st.builds(
    Message,
    topic=st.just("t"),
    body=st.binary(min_size=1, max_size=5),
    tag=st.none() | words,
    keys=st.lists(words, max_size=2).map(tuple),
    properties=st.dictionaries(st.sampled_from(("a", "b.c", "a\\", "é", "aa")) | texts, texts | words, max_size=4),
    message_group=st.none() | words,
    message_id=words,
)


@given(st.lists(messages, min_size=1, max_size=40))
def test_a_record_gives_the_properties_that_are_asked_for(sent: list[Message]) -> None:
    for each in sent:
        fields = {"TAGS": each.tag, "KEYS": " ".join(each.keys), "UNIQ_KEY": each.message_id, "__SHARDINGKEY": each.message_group}
        held = {name: each.properties.get(name) for name in NAMES} | fields
        assert property_texts(encode_message(each), NAMES) == {name: text for name, text in held.items() if text}


@given(
    st.lists(messages, min_size=1, max_size=40),
    st.sampled_from(
        ("*", "a || b", "a > 0", "a = TRUE OR b IS NULL", "TAGS IN ('a', 'b') AND a IS NOT NULL", "KEYS LIKE '%a%'", "NOT a = 'a'")
    ),
    st.integers(0, 40),
    st.integers(1, 40),
)
def test_picking_takes_the_first_that_pass(sent: list[Message], expression: str, skip: int, wanted: int) -> None:
    records = [encode_message(each) for each in sent]
    skip = min(skip, len(records))
    chosen = parse_filter(expression)
    picker = picker_of(chosen, record_format)
    passing = [at for at in range(skip, len(records)) if chosen.matches(property_texts(records[at], chosen.names))]
    if picker is None:
        assert passing == list(range(skip, len(records)))
        return
    taken, behind, looks = picker.pick(records, skip, wanted, 100)
    assert list(taken) == passing[:wanted]
    assert behind == (passing[wanted - 1] + 1 if len(passing) >= wanted else len(records))
    assert looks == 100 - (behind - skip)
    assert picker.pick(records, skip, wanted, 3) == (
        passing[: min(wanted, bisect(passing, skip + 2))],
        min(behind, skip + 3),
        max(looks - 97, 0),
    )


def test_long_properties_and_patterns_take_more_looks() -> None:
    """A pop holds the lock of its store while it looks."""
    records = [encode_message(Message("t", b"x", properties={"p": "a" * 30_000}))] * 100

    def looked_at(expression: str, looks: int = 1024) -> int:
        picker = picker_of(parse_filter(expression), record_format)
        assert picker is not None
        taken, behind, left = picker.pick(records, 0, 1000, looks)
        assert (list(taken) == [] and left == 0) or behind == 100
        return behind

    assert looked_at("q = 'b' OR TAGS = 'c'") == 100
    assert looked_at("p = 'b'", 80) == 10
    assert looked_at("p LIKE '%b%'", 80) == 3
    hard = f"p LIKE '%{'a_' * 1000}b%'"
    assert looked_at(hard) == looked_at(f"NOT ({hard} OR p IS NULL) AND q = '1'") == 1
