"""Messages at random, and what may stand in a record, for the tests of records."""

from __future__ import annotations

from hypothesis import strategies as st

from rmqstore.message import Message
from rmqstore_wheel.formats import properties

V6 = bytes.fromhex("20010db800000000000000000000000100002a9f")
WHEEL = b"rmq_sys_wheel_timer"
FRAME = b"RMQS_FRAME\x01" + b"f" * 54 + b"\x02"

WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Z"], exclude_characters="|"), min_size=1, max_size=12)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12)
NAME = TEXT.filter(lambda name: not properties.is_hidden(name))
TOPIC = st.sampled_from(["a", "orders", "t" * 127]) | st.from_regex(r"[A-Za-z0-9_%|-]{1,127}", fullmatch=True)
MESSAGE = st.builds(
    Message,
    topic=TOPIC,
    body=st.binary(min_size=1, max_size=80),
    tag=st.none() | WORD,
    keys=st.lists(WORD, max_size=3).map(tuple),
    properties=st.dictionaries(st.sampled_from(["user", "é"]) | NAME, TEXT, max_size=3),
    message_group=st.none() | WORD,
    deliver_at_ms=st.none() | st.integers(0, 2**62),
    message_id=WORD,
    born_ms=st.integers(0, 2**62),
    queue_id=st.none() | st.integers(0, 1023),
)
