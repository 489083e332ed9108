"""A script drawn by a seed: every call of a store in an order of chance, so that cuts meet pairs of calls that no case names.

Whatever an engine is free to choose is not left to it: a pop names its queue or takes all there is, and :data:`SETTLED_SHARE` says when it
looks at the retry topic. What a call is about is drawn from what the calls before it gave, in every play alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, ClassVar, Final

from rmqstore import CancelOutcome, InitMode, ManualClock, Message, MessageBatch, Store
from rmqstore.contract import Receipt, TimerHandle
from rmqstore.store.dead_letters import DeadLetter
from rmqstore_conformance.faults.script import Answer, Notes, Script, messages_of, take
from rmqstore_conformance.model.chance import Chance

PREFIX: Final = "random "
"""A name of such a script is this and a seed."""

SETTLED_SHARE: Final[dict[str, Any]] = {"retry_share": 1.0, "hand_over_limit": 3}
"""Settings for such a script: every pop looks at the retry topic first, and a tick hands over in several steps."""

_STEPS: Final = 40
_LONGEST_MS: Final = 15_000
"""No message of the script is old enough to be reclaimed by then; what is reclaimed is durable with a later call only."""
_TOPICS: Final = ("t", "u")
_GROUPS: Final = ("g", "h")
_ORDERED: Final = "o"
"""The topic, and the group, of pops in order; its messages are all in queue 0."""
_ALL: Final = 1000
_KEYS: Final = ("k", "l")
_DUE_MS: Final = (1, 100, 250, 600, 1000, 2500, 6000, 400_000)
_INVISIBLE_MS: Final = (50, 300, 1000, 5000, 60_000)

_OPERATIONS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("create_topic", "delete_topic", "set_group", "delete_group", "reset_offset", "drop_dead"), 1),
    **dict.fromkeys(("send_again", "cancel_key", "change_invisible", "release", "reject", "retry_later", "resend_dead"), 2),
    **dict.fromkeys(("send", "cancel", "pop_in_order", "ack"), 4),
    **dict.fromkeys(("send_batch", "pop", "tick"), 6),
}
_NEEDS: Final = {"cancel_key": "cancel_by_key", "pop_in_order": "fifo"}
_SETTLING: Final = ("ack", "change_invisible", "release", "reject", "retry_later")
_REMOVING: Final = ("resend_dead", "drop_dead")


class RandomScript(Script):
    """See the module.

    Args:
        name: :data:`PREFIX` and the seed.
    """

    usual_size: ClassVar[str] = "some"

    def __init__(self, store: Store, clock: ManualClock, notes: Notes | None = None, *, name: str) -> None:
        super().__init__(store, clock, notes)
        self._marked: list[Callable[[str], Answer]] = []
        chance = Chance(name)
        offered = {each: weight * chance.pick((0, 1, 1, 2, 5)) for each, weight in _OPERATIONS.items() if self.has(*_needs(each))}
        now_ms = 0
        for number in range(_STEPS):
            operation = chance.weighted({"send_batch": 1, "pop": 1, "tick": 1} if not any(offered.values()) else offered)
            step = f"{operation}-{number}"
            its_own = Chance(f"{name} {step}")
            if operation == "tick":
                now_ms = min(now_ms + its_own.pick((0, 100, 300, 600, 1000, 2000)), _LONGEST_MS)
                self.add_tick(step, now_ms)
            elif operation in _SETTLING:
                self._settle(step, operation, its_own)
            elif operation in _REMOVING:
                self._remove(step, operation, its_own)
            else:
                getattr(self, f"_{operation}")(step, its_own)

    # ------------------------------------------------------------ sends and cancels

    def _drawn(self, step: str, chance: Chance, count: int, kinds: Sequence[str]) -> list[Message]:
        kind, topic = chance.pick(kinds), chance.pick(_TOPICS)
        body = bytes(chance.pick((0, 0, 0, 3_000)))
        if kind == "in order" and self.has("fifo"):
            return messages_of(f"{step}-", count, _ORDERED, body=body, message_group="two")
        now_ms = self._ms_of(step)
        later: list[int | None] = [now_ms + chance.pick(_DUE_MS) for _ in range(count)]
        due_ms = {"later": later, "mixed": [None, *later]}.get(kind, [None])
        queue, keys = chance.number(0, 1), (chance.pick(_KEYS), step)
        return messages_of(f"{step}-", count, topic, body=body, due_ms=due_ms, queue_id=queue, keys=keys)

    def _ms_of(self, step: str) -> int:
        """Return a time near that of a step; all of its draws are made before the first call is."""
        return _number_of(step) * _LONGEST_MS // _STEPS // 2

    def _add_send(self, step: str, operation: str, send: Callable[[], Sequence[Any]], marks: Sequence[bytes]) -> None:
        """Add a send; one with marks can be made again, at once or by a later step."""
        if marks:
            self._marked.append(lambda step: self.sent(step, send()))
        self.add(step, operation, lambda: self.sent(step, send()), again="REPEATED" if marks else None)

    def _send_again(self, step: str, chance: Chance) -> None:
        if self._marked:
            send = chance.pick(self._marked)
            self.add(step, "send again", lambda: send(step), again="REPEATED")

    def _marks(self, step: str, chance: Chance) -> list[bytes]:
        return [f"{step} mark {number}".encode() for number in range(chance.pick((0, 0, 1, 2)))]

    def _send(self, step: str, chance: Chance) -> None:
        (message,), marks = self._drawn(step, chance, 1, ("now", "later", "later", "in order")), self._marks(step, chance)
        self._add_send(step, "send", lambda: [self.store.send(message, marks=marks)], marks)

    def _send_batch(self, step: str, chance: Chance) -> None:
        messages = self._drawn(step, chance, chance.number(2, 7), ("now", "now", "later", "mixed", "in order"))
        marks = self._marks(step, chance)
        given: Any = MessageBatch.of(messages).columns if chance.one_in(3) else messages
        self._add_send(step, "send_batch", lambda: self.store.send_batch(given, marks=marks), marks)

    def _cancel(self, step: str, chance: Chance) -> None:
        def make() -> object:
            handles = [text for text in self._given_before(step) if TimerHandle.parse(text) is not None]
            return self.store.cancel(chance.some(handles[-12:], 4)) if handles else []

        self.add(step, "cancel", make)

    def _cancel_key(self, step: str, chance: Chance) -> None:
        topic, keys = chance.pick(_TOPICS), chance.some(_KEYS, 2)

        def make() -> object:
            # What was handed over is found as long as it is not reclaimed, which is not promised.
            found = chain.from_iterable(self.store.cancel_keys(topic, keys))
            return [each for each in found if each is CancelOutcome.CANCELLED]

        self.add(step, "cancel_key", make)

    # ------------------------------------------------------------ pops and what becomes of leases

    def _given_before(self, step: str) -> list[str]:
        """Return the handles and receipts that calls before a step gave and that no deletion took."""
        names = list(self.calls)
        return [text for name in names[: names.index(step)] for text in self.notes.get(name, ()) if text]

    def _pop(self, step: str, chance: Chance) -> None:
        topic, group, invisible_ms = chance.pick(_TOPICS), chance.pick(_GROUPS), chance.pick(_INVISIBLE_MS)
        queue = chance.pick((0, 1, None))
        most = _ALL if queue is None else chance.pick((1, 2, 4, _ALL))
        attempt = chance.pick((None, None, "a", step))
        self.add(
            step,
            "pop",
            lambda: self.given(
                step, self.store.pop(topic, group, max_messages=most, invisible_ms=invisible_ms, queue=queue, attempt_id=attempt)
            ),
        )

    def _pop_in_order(self, step: str, chance: Chance) -> None:
        most, invisible_ms = chance.pick((1, 2, 4)), chance.pick(_INVISIBLE_MS)

        def make() -> Answer:
            popped = self.store.pop(_ORDERED, _ORDERED, max_messages=most, invisible_ms=invisible_ms, queue=0, order=True)
            return self.given(step, popped)

        self.add(step, "pop in order", make)

    def _settle(self, step: str, operation: str, chance: Chance) -> None:
        # No lease ends at that moment already, so a change shows, and who was killed in it knows whether it was made.
        invisible_ms, reason = chance.pick(_INVISIBLE_MS) + _number_of(step), chance.pick(("", "no answer"))

        def make() -> object:
            held = [text for text in self._given_before(step) if Receipt.parse(text) is not None]
            if not held:
                return "NOTHING"
            chosen = chance.some(held[-10:], 4)
            return self.settled(step, operation, chosen, invisible_ms, reason)

        self.add(step, operation, make)

    # ------------------------------------------------------------ what operators do

    def _remove(self, step: str, operation: str, chance: Chance) -> None:
        def make() -> int:
            letters: list[DeadLetter] = [each for group in (*_GROUPS, _ORDERED) for each in self.store.dead_letters.list(group)]
            chosen = chance.some(letters, 3) if letters else []
            remove = self.store.dead_letters.resend if operation == "resend_dead" else self.store.dead_letters.drop
            return remove(chosen)

        self.add(step, operation, make)

    def _reset_offset(self, step: str, chance: Chance) -> None:
        topic, group, to = chance.pick(_TOPICS), chance.pick(_GROUPS), chance.pick((InitMode.MIN, InitMode.MAX))

        def make() -> str | None:
            if all(each.name != topic for each in self.store.topics.list()):
                return "NOTHING"
            self.store.groups.reset_offset(topic, group, to)
            return None

        self.add(step, "reset_offset", make)

    def _create_topic(self, step: str, chance: Chance) -> None:
        topic, queues = chance.pick(_TOPICS), chance.pick((2, 3))
        self.add(step, "create_topic", lambda: self.store.topics.create(topic, queues).queues)

    def _delete_topic(self, step: str, chance: Chance) -> None:
        topic = chance.pick((*_TOPICS, _ORDERED))

        def drop_letters() -> int:
            letters = [each for group in (*_GROUPS, _ORDERED) for each in self.store.dead_letters.list(group) if each.origin_topic == topic]
            return self.store.dead_letters.drop(letters)

        # Letters of a deleted topic are listed, and not counted under its name; what a store shows does not tell them from later ones.
        self.add(f"{step} letters", "drop_dead", drop_letters)
        self._add_deletion(step, "delete_topic", self.store.topics.delete, ("topic", topic))

    def _delete_group(self, step: str, chance: Chance) -> None:
        group = chance.pick((*_GROUPS, _ORDERED))
        self._add_deletion(step, "delete_group", self.store.groups.delete, ("group", group))

    def _set_group(self, step: str, chance: Chance) -> None:
        group, retries = chance.pick((*_GROUPS, _ORDERED)), chance.pick((None, 0, 2))
        backoff = [timedelta(milliseconds=each) for each in chance.pick(((), (200,), (100, 900)))]
        self.add(step, "set_group", lambda: self.store.groups.set(group, max_retries=retries, backoff=backoff))

    def _add_deletion(self, step: str, operation: str, delete: Callable[[str], object], takes: tuple[str, str]) -> None:
        def make() -> None:
            delete(takes[1])
            take(self.calls[step], self.notes)

        self.add(step, operation, make, takes=takes)


def _needs(operation: str) -> tuple[str, ...]:
    return (_NEEDS[operation],) if operation in _NEEDS else ()


def _number_of(step: str) -> int:
    return int(step.rpartition("-")[2])
