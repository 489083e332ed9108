"""Parking: what cannot be read goes to the topic ``%PARKED%`` with its reason; it is never dropped and never blocks others (T12)."""

from __future__ import annotations

from rmqstore.message import MAX_BODY_BYTES, PARKED_TOPIC, PROPERTY_ORIGIN_ID, PROPERTY_ORIGIN_TOPIC, PROPERTY_PARKED_REASON, Message
from rmqstore.ordered.records import encode_message
from rmqstore.ordered.runs import Run


def parked_record(raw: bytes, reason: str, origin: str, origin_topic: str = "") -> bytes:
    """Return a record for ``%PARKED%`` whose body is what was found, as far as a body can hold it."""
    properties = {PROPERTY_PARKED_REASON: reason, PROPERTY_ORIGIN_ID: origin}
    if origin_topic:
        properties[PROPERTY_ORIGIN_TOPIC] = origin_topic
    message = Message(PARKED_TOPIC, raw[:MAX_BODY_BYTES] or b"\x00", properties=properties, message_id=origin.replace(" ", "-"), queue_id=0)
    return encode_message(message)


def parked_run(raw: bytes, reason: str, origin: str) -> Run:
    """Return a run of the one parked message that stands for a damaged run."""
    return Run(0, 0, [parked_record(raw, reason, origin)], (0,))
