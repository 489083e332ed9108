"""Picking by filter gives what the filter says of each message."""

from __future__ import annotations

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
    taken, behind = picker.pick(records, skip, wanted)
    assert list(taken) == passing[:wanted]
    assert behind == (passing[wanted - 1] + 1 if len(passing) >= wanted else len(records))
