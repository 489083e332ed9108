"""What operators do to a store: resets, dead letters, topics and groups that come and go, and looking for messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from rmqstore import InitMode, Message, RmqstoreError
from rmqstore.message import MAX_TIME_MS, retry_topic
from rmqstore_conformance.fidelity import came_out, matching
from rmqstore_conformance.model.chance import BACKOFFS_MS, Chance
from rmqstore_conformance.model.machine import operation
from rmqstore_conformance.model.places import copies_of, is_one_of, places_of
from rmqstore_conformance.model.popping import PoppingMachine


class OperatedMachine(PoppingMachine):
    @operation(3)
    def reset_offset(self, chance: Chance) -> None:
        topic, group = chance.pick(self.topics), chance.pick(self.groups)
        if topic not in self.oracle.queues:
            self.refused(lambda: self.store.groups.reset_offset(topic, group, InitMode.MIN), "there is no topic")
            self.saw("reset", "refused", "no topic")
            return
        queues = self.oracle.queues[topic]
        number = chance.number(0, len(queues) - 1) if chance.one_in(2) or len(queues) == 1 else None
        to: int | InitMode = chance.pick((InitMode.MIN, InitMode.MAX))
        if number is not None and chance.one_in(2):
            to = chance.number(queues[number].first, len(queues[number].entries))
            if queues[number].first:
                before = queues[number].first - 1
                self.refused(lambda: self.store.groups.reset_offset(topic, group, before, queue=number), "lies outside")
                self.saw("reset", "refused", "before the first kept")
        if chance.one_in(2) and not self.oracle.held_by(topic, group):
            self.popped_by(topic, group, 5, 60_000)
        asked = range(len(queues)) if number is None else [number]
        held = [each for source in asked for each in self.oracle.held_by(topic, group, source)]
        self.store.groups.reset_offset(topic, group, to, queue=number)
        for each in asked:
            at = to if isinstance(to, int) else {InitMode.MIN: queues[each].first, InitMode.MAX: len(queues[each].entries)}[to]
            self.oracle.reset(topic, group, each, at, self.now)
        kind = "fifo" if self.mode_of(topic, group) else "plain"
        leases = "backing off" if any(each.is_backing_off for each in held) else "leases" if held else "no leases"
        self.saw("reset", "moved", f"{kind}, {leases}")
        self.saw("reset", "moved", to.name if isinstance(to, InitMode) else "an offset")
        self.settle_some(chance, [each.receipt for each in held])

    # ------------------------------------------------------------ dead letters

    @operation(4, when=lambda machine: any(machine.oracle.letters.values()))
    def remove_dead(self, chance: Chance) -> None:
        """Resend or drop some letters; then the same call again, which finds none of them."""
        group = chance.pick(sorted(group for group, letters in self.oracle.letters.items() if letters))
        numbers = chance.some(range(len(self.oracle.letters[group])), 6)
        self.remove_letters(group, numbers, resend=not chance.one_in(3))

    def remove_letters(self, group: str, numbers: Sequence[int], *, resend: bool) -> None:
        """Remove the letters with these numbers in the list of a group."""
        letters = self.store.dead_letters.list(group)
        self.oracle.take_over_letters(group, letters)
        chosen = [letters[number] for number in numbers]
        known = [self.oracle.letters[group][number] for number in sorted(set(numbers))]
        remove = self.store.dead_letters.resend if resend else self.store.dead_letters.drop
        assert remove(chosen) == len(set(numbers))
        assert remove(chosen) == 0
        for letter in known:
            kind = "fifo" if self.mode_of(letter.origin, group) else "plain"
            state = kind if letter.counts else f"{kind}, topic deleted since"
            self.saw("resend" if resend else "drop", "removed", state)
        self.arrived(self.oracle.remove_letters(group, known, self.now, resend=resend), in_order=False)
        self.take_over_retries()

    # ------------------------------------------------------------ coming and going

    @operation(2)
    def create_topic(self, chance: Chance) -> None:
        topic = chance.pick(self.topics)
        queues = self.plan.topics[topic] + (chance.one_in(4) and self.queues_of(topic) < 5)
        is_new = topic not in self.oracle.queues
        assert self.store.topics.create(topic, queues).queues == max(self.queues_of(topic), queues)
        wider = queues > self.queues_of(topic)
        self.oracle.create_topic(topic, queues)
        self.oracle.arranged.add(topic)
        self.saw("create topic", "made" if is_new else "widened" if wider else "as it was")

    @operation(1)
    def delete_topic(self, chance: Chance) -> None:
        """Delete a topic; it comes again with its next message."""
        topic = chance.pick(self.topics)
        held = [each for each in self.oracle.live.values() if each.topic == topic]
        state = "leases" if held else "timers" if any(each.message.topic == topic for each in self.oracle.pending()) else "nothing left"
        self.saw("delete topic", "deleted" if topic in self.oracle.queues else "not there", state)
        if any(each.is_backing_off for each in held):
            self.saw("delete topic", "deleted", "leases that back off")
        if any(run for (of, _), at in self.oracle.standings.items() if of == topic for run in at.unacked.values()):
            self.saw("delete topic", "deleted", "fifo run")
        self.store.topics.delete(topic)
        self.oracle.delete_topic(topic)
        self._made_anew(chance, topic, [(topic, group) for group in self.groups])
        self.settle_some(chance, [each.receipt for each in held])

    @operation(2)
    def set_group(self, chance: Chance) -> None:
        group, retries, table = chance.pick(self.groups), chance.pick((None, 0, 1, 3)), chance.pick(BACKOFFS_MS)
        self.store.groups.set(group, max_retries=retries, backoff=[timedelta(milliseconds=each) for each in table])
        self.oracle.retries_of.pop(group, None)
        self.oracle.backoffs_of.pop(group, None)
        if retries is not None:
            self.oracle.retries_of[group] = retries
        if table:
            self.oracle.backoffs_of[group] = table
        self.saw("set group", "set", "own retries" if retries is not None else "own table" if table else "none")

    @operation(1)
    def delete_group(self, chance: Chance) -> None:
        """Delete a group; it comes again with its next pop."""
        group = chance.pick(self.groups)
        held = [each for each in self.oracle.live.values() if each.group == group]
        letters = self.oracle.letters.get(group)
        self.saw("delete group", "deleted", "leases" if held else "letters" if letters else "nothing left")
        if any(run for (_, of), at in self.oracle.standings.items() if of == group for run in at.unacked.values()):
            self.saw("delete group", "deleted", "fifo run")
        self.store.groups.delete(group)
        self.oracle.delete_group(group)
        self._made_anew(chance, group, [(topic, group) for topic in self.topics])
        self.settle_some(chance, [each.receipt for each in held])

    def _made_anew(self, chance: Chance, name: str, places: Sequence[tuple[str, str]]) -> None:
        """Take note of a deletion; what comes under that name may be popped in the other way."""
        self.deleted.add(name)
        self.read_to.clear()
        if self.has_fifo and chance.one_in(2):
            self.in_order ^= {chance.pick(places)}

    # ------------------------------------------------------------ calls that are refused

    @operation(4)
    def refused_call(self, chance: Chance) -> None:
        """Make a call that cannot be done, for one of its parts that is not the first; it is refused, and nothing of it is done (F3)."""
        topic, group = chance.pick(self.topics), chance.pick(self.groups)
        good = [self.drawn(chance, topic=topic, may_group=False) for _ in range(chance.number(1, 3))]
        bad: dict[str, Callable[[], object]] = {
            "a reserved topic": lambda: self.store.send_batch([*good, Message(retry_topic(group, topic), b"")]),
            "a topic that is none": lambda: self.store.send_batch([*good, Message("no topic!", b"")], marks=[b"refused"]),
            "a queue that is none": lambda: self.store.send_batch([*good, Message(topic, b"", queue_id=-1)]),
            "a time before all times": lambda: self.store.send_batch([*good, Message(topic, b"", deliver_at_ms=-1)]),
            "a key that is none": lambda: self.store.send_batch([*good, Message(topic, b"", keys=("a b",))]),
            "no level": lambda: self.store.send(good[0], delay_level=19),
            "a group in order that waits": lambda: self.store.send(Message(topic, b"", message_group="a"), deliver_at_ms=self.now + 5000),
            "no messages": lambda: self.store.pop(topic, group, max_messages=0),
            "no time": lambda: self.store.pop(topic, group, invisible_ms=0),
            "a filter that is none": lambda: self.store.pop("t-refused", group, filter="a ||"),
            "a queue that no topic has": lambda: self.store.pop(topic, group, queue=10_000),
            "a change to no time": lambda: self.store.change_invisible(list(self.oracle.live)[:3], invisible_ms=0),
            "less than no retries": lambda: self.store.groups.set(group, max_retries=-1),
            "no queues": lambda: self.store.topics.create(topic, 0),
            "a reset beyond the end": lambda: self.store.groups.reset_offset(topic, group, 10_000, queue=0),
            "a reset of a queue that is none": lambda: self.store.groups.reset_offset(topic, group, InitMode.MAX, queue=10_000),
            "an id and a key to look for": lambda: self.store.where(id="a", key="b"),
            "nothing to look for": self.store.where,
            "a deletion of a retry topic": lambda: self.store.topics.delete(retry_topic(group, topic)),
        }
        what = chance.pick(list(bad))
        try:
            bad[what]()
        except RmqstoreError:
            self.saw("refused call", what)
        else:
            raise AssertionError(f"a call with {what} was not refused")
        self.look(whole=chance.one_in(3))

    # ------------------------------------------------------------ looking in part

    @operation(3)
    def look_in_part(self, chance: Chance) -> None:
        """List a part of what there is: timers between two times, in small pages, leases of one topic or group, some messages."""
        pending = self.oracle.pending()
        times = [0, self.now, *(timer.due + chance.pick((-1, 0, 1)) for timer in pending[:20])]
        first, behind = sorted(min(max(chance.pick(times), 0), MAX_TIME_MS) for _ in range(2))
        page = self.store.scan(from_ms=first, to_ms=behind, limit=chance.pick((1, 2, 5)))
        listed = list(page.timers)
        while page.next_after is not None:
            page = self.store.scan(from_ms=first, to_ms=behind, after=page.next_after, limit=chance.pick((1, 2, 5)))
            listed += page.timers
        assert [each.handle.text() for each in listed] == [each.handle for each in pending if first <= each.due < behind]
        counted = self.store.pending([first, behind]).counts if first < behind else [len(listed)]
        assert list(counted) == [len(listed)], f"{counted} timers are counted from {first} to {behind}, and {len(listed)} listed"
        topic, group = chance.pick((None, *self.topics)), chance.pick((None, *self.groups))
        leases = [each.receipt for each in self.store.leases(topic, group)]
        assert leases == [each[-1] for each in self.oracle.running_leases() if topic in (None, each[0]) and group in (None, each[1])]
        name = chance.pick(self.topics)
        for number, queue in enumerate(self.oracle.queues.get(name, ())):
            offset, limit = chance.number(0, len(queue.entries)), chance.pick((1, 3))
            offsets = range(max(offset, queue.first), len(queue.entries))[:limit]
            assert [each.queue_offset for each in came_out(self.store.read(name, number, offset, limit))] == list(offsets)

    # ------------------------------------------------------------ looking for messages

    @operation(6)
    def find(self, chance: Chance) -> None:
        """Ask where a message is, by id or by key, and get it (P14)."""
        if running := [each for each in self.popped if each.receipt in self.oracle.live]:
            # Few are put off by chance, with a reason that is told.
            self._put_off(chance, running[: chance.number(0, 2)])
        known = [each.message for each in self.oracle.timers[-20:]]
        known += [each.message for queues in self.oracle.queues.values() for queue in queues for each in queue.entries[queue.first :][-20:]]
        known += [held.entry.message for held in list(self.oracle.leases.values())[-20:]]
        known += [letter.entry.message for letters in self.oracle.letters.values() for letter in letters]
        if not known:
            return
        waiting = [held.entry.message for held in self.oracle.live.values() if held.is_backing_off]
        message = chance.pick(waiting if waiting and chance.one_in(2) else known)
        for group in self.groups:
            self.oracle.take_over_letters(group, self.store.dead_letters.list(group))
        topic = chance.pick((None, message.topic))
        asked = {"id": message.message_id}
        expected = places_of(self.oracle, message_id=message.message_id, topic=topic)
        if message.keys and chance.one_in(2):
            asked = {"key": message.keys[0]}
            expected = places_of(self.oracle, key=message.keys[0], topic=topic)
        found = self.store.where(topic=topic, **asked)
        for each in found:
            what = f"where({asked}): {each.state} of {each.group!r}"
            place = matching(what, expected, lambda place: place.differences(each))  # noqa: B023 - called at once
            expected = [other for other in expected if other is not place]
            self.saw("find", place.state.name, "by id" if "id" in asked else "by key")
        assert not expected, f"where({asked}) does not say {expected}"
        if not found:
            self.saw("find", "nothing")
        got = self.store.get(str(message.message_id))
        assert is_one_of(got, copies_of(self.oracle, str(message.message_id))), f"get({message.message_id!r}) gives {got}"
        self.saw("get", "found" if got else "nothing")
