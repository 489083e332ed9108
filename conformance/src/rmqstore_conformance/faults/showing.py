"""What a store shows of itself: all that a user can see, whole messages included, in a form that two stores can be compared by.

Left out is what differs between two stores that went the same way: receipts and handles, which name the store, and when a lease was given,
which is only promised to rise.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

import msgspec

from rmqstore import Store
from rmqstore.contract import LeaseInfo, PendingTimer, TopicInfo
from rmqstore.message import DLQ_PREFIX, RETRY_PREFIX, Message, PoppedMessage
from rmqstore.store.dead_letters import DeadLetter

Shown = dict[str, Any]
"""What is shown, as JSON has it, by name: timers, queues, where the groups stand, letters, leases, and what is wrong."""

_PAGE: Final = 100_000
_WHOLE_ROWS: Final = 48
"""So many rows are shown as they are; of more, their ids and a digest of all their fields."""

_WHOLE_BODY: Final = 64

_OF_LEASE: Final = attrgetter(
    "topic", "group", "queue_id", "queue_offset", "message_id", "attempt", "expiry_ms", "is_backing_off", "reason"
)
_OF_LETTER: Final = attrgetter("group", "reason", "attempts", "origin_topic", "origin_message_id", "died_ms")


def row_of(message: Message | PoppedMessage) -> dict[str, Any]:
    """Return every field of a message, but for the proof of its lease."""
    fields = msgspec.structs.asdict(message)
    fields.pop("proof", None)
    body = fields.pop("body")
    fields["body"] = body.decode("latin-1") if len(body) <= _WHOLE_BODY else f"{len(body)} bytes, {_digest(body)}"
    fields["keys"], fields["properties"] = list(fields["keys"]), dict(fields["properties"])
    return fields


def rows_of(messages: Iterable[Any]) -> list[Any]:
    """Return messages as rows; many of them shortened to what still tells any two lists apart."""
    found = list(messages)
    if len(found) <= _WHOLE_ROWS:
        return [row_of(each) for each in found]
    whole = [msgspec.structs.replace(each, proof=None) if isinstance(each, PoppedMessage) and each.proof else each for each in found]
    told = f"{len(found)} messages, {found[0].message_id} to {found[-1].message_id}"
    return [told, _digest(msgspec.json.encode(whole, order="deterministic"))]


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def show(store: Store) -> Shown:
    """Return what a store shows."""
    topics = store.topics.list(system=True)
    groups = store.groups.list()
    places = sorted((each.topic, each.group) for each in store.groups.subscriptions())
    # Of a group that never popped all kept messages count, so it says how much there is.
    lags = {place: store.lag(*place) for place in [*places, *((topic.name, "nobody") for topic in store.topics.list())]}
    letters = [letter for group in groups for letter in store.dead_letters.list(group)]
    timers = _timers_of(store)
    leases = store.leases()
    pending = store.pending()
    shown = {
        "timers": rows_of(timer.message for timer in timers),
        "due": _short([timer.deliver_at_ms for timer in timers]),
        "pending": msgspec.to_builtins(pending),
        "topics": [_topic(each) for each in topics],
        "queues": [[topic.name, rows_of(_lying_in(store, topic))] for topic in topics],
        "lags": [[*place, msgspec.to_builtins(lag)] for place, lag in lags.items()],
        "groups": [
            [group, msgspec.to_builtins(store.groups.settings(group)), msgspec.to_builtins(store.groups.offsets(group))] for group in groups
        ],
        "subscriptions": msgspec.to_builtins(store.groups.subscriptions()),
        "letters": _short([[*_OF_LETTER(each), row_of(each.message)] for each in letters]),
        "leases": _short(sorted(map(_OF_LEASE, leases))),
        "notes": [[name, _digest(value)] for name, value in sorted(store.engine.pops.notes().items())],
        "parked": rows_of(each.message for each in store.dead_letters.parked()),
        "contradictions": _contradictions(store, topics, letters, leases, len(timers)),
        "wrong": store.verify(),
    }
    found: Shown = msgspec.json.decode(msgspec.json.encode(shown))
    return found


def _short(rows: list[Any]) -> list[Any]:
    if len(rows) <= _WHOLE_ROWS:
        return rows
    return [f"{len(rows)} of them", _digest(json.dumps(rows).encode())]


def _topic(topic: TopicInfo) -> dict[str, Any]:
    """Return a topic; upkeep, which promises nothing, removes at any time what a group consumed of its own retry topic."""
    found: dict[str, Any] = msgspec.to_builtins(topic)
    if topic.name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        del found["min_offsets"]
    return found


def _lying_in(store: Store, topic: TopicInfo) -> list[Message | PoppedMessage]:
    """Return what is in a topic, queue by queue; of a retry topic what its group has not popped yet, as leases say what it holds."""
    lying = [message for page in store.engine.pops.pages(topic) for message in page.messages]
    if not topic.name.startswith(RETRY_PREFIX):
        return lying
    popped = {
        each.queue_id: each.next_offset for group in store.groups.list() for each in store.groups.offsets(group) if each.topic == topic.name
    }
    return [each for each in lying if isinstance(each, PoppedMessage) and each.queue_offset >= popped.get(each.queue_id, 0)]


def _timers_of(store: Store) -> list[PendingTimer]:
    found: list[PendingTimer] = []
    page = store.scan(limit=_PAGE)
    while page.next_after is not None:
        found += page.timers
        page = store.scan(limit=_PAGE, after=page.next_after)
    return [*found, *page.timers]


def _contradictions(store: Store, topics: list[TopicInfo], letters: list[DeadLetter], leases: list[LeaseInfo], timers: int) -> list[str]:
    """Say which counts are not those of what they count: a counter that is written behind the call that moves it may stay behind."""
    found = []
    pending = store.pending().total
    if pending != timers:
        found.append(f"{pending} pending timers are counted, and {timers} are listed")
    held = Counter((each.topic, each.group, each.is_backing_off) for each in leases)
    dead = Counter((each.origin_topic, each.group) for each in letters)
    at = {(group, each.topic, each.queue_id): each.next_offset for group in store.groups.list() for each in store.groups.offsets(group)}
    for each in store.groups.subscriptions():
        lag = store.lag(each.topic, each.group)
        (info,) = [topic for topic in topics if topic.name == each.topic]
        ends = enumerate(zip(info.min_offsets, info.max_offsets, strict=True))
        ready = sum(end - max(first, at.get((each.group, each.topic, queue), 0)) for queue, (first, end) in ends)
        counted = {"ready": lag.ready, "in_flight": lag.in_flight, "backing_off": lag.backing_off, "dead": lag.dead}
        listed = {
            "ready": ready,
            "in_flight": held[each.topic, each.group, False],
            "backing_off": held[each.topic, each.group, True],
            "dead": dead[each.topic, each.group],
        }
        found += [
            f"{each.group} has {counted[name]} {name} messages of {each.topic} counted, and {number} listed"
            for name, number in listed.items()
            if counted[name] != number
        ]
    return found


def difference(shown: Shown, expected: Shown) -> str:
    """Say in a line what is different."""
    return "; ".join(f"{name} {_told(shown[name], expected[name])}" for name in expected if shown[name] != expected[name])


def _told(shown: Any, expected: Any) -> str:
    if isinstance(shown, list) and isinstance(expected, list) and shown and expected:
        more = [each for each in shown if each not in expected]
        less = [each for each in expected if each not in shown]
        if more or less:
            return f"{_cut(more)} in place of {_cut(less)}"
    return f"{_cut(shown)} in place of {_cut(expected)}"


def _cut(found: Any) -> str:
    text = str(found)
    return text if len(text) < 400 else f"{text[:400]} …"
