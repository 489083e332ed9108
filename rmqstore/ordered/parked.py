"""Parking: what cannot be read goes to the topic ``%PARKED%`` with its reason; it is never dropped and never blocks others (T12)."""

from __future__ import annotations

import re
from typing import Final

from rmqstore.message import MAX_BODY_BYTES, PARKED_TOPIC, PROPERTY_ORIGIN_ID, PROPERTY_ORIGIN_TOPIC, PROPERTY_PARKED_REASON, Message


def parked_message(raw: bytes, reason: str, origin: str, origin_topic: str = "") -> Message:
    """Return a message for ``%PARKED%`` whose body is what was found, as far as a body can hold it."""
    properties = {PROPERTY_PARKED_REASON: reason, PROPERTY_ORIGIN_ID: origin}
    if origin_topic:
        properties[PROPERTY_ORIGIN_TOPIC] = origin_topic
    return Message(PARKED_TOPIC, raw[:MAX_BODY_BYTES] or b"\x00", properties=properties, message_id=origin.replace(" ", "-"), queue_id=0)


_ORIGIN: Final = re.compile(PROPERTY_ORIGIN_TOPIC.encode() + rb"\x01([^\x01\x02]+)\x02")
"""The property in RocketMQ's text form, which every format of records uses."""


def origins_in(raw: bytes) -> list[str]:
    """Return the topics that dead letters which cannot be read still name, one for each letter that does."""
    return [name.decode(errors="replace") for name in _ORIGIN.findall(raw)]
