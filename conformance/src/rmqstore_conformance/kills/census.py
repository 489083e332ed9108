"""The ledger of the second kind of worker: where each message is, by its id, told by what was answered and looked up after each kill.

A message is in one place at a time: pending, ready, in flight, waiting to be given again, dead, or at its end: acked, dropped, reclaimed by
age, skipped by a reset, deleted with its topic. After a kill everything that can be read is read, and must be where the book has it or
where the call that was under way puts it, for all that the call was about or for nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmqstore import ManualClock, Store
from rmqstore.contract import LeaseInfo
from rmqstore.message import retry_topic
from rmqstore_conformance.kills.consumer import GROUP_OF, IN_ORDER, MAX_RETRIES, RETENTION_MS, SETTINGS, TOPIC_OF, do_pop, do_tick, lags
from rmqstore_conformance.kills.worker import PRECISION_MS

UNSTORED, PENDING, READY, HELD, RETRY, WAITING, DEAD = "not stored", "pending", "ready", "in flight", "to retry", "waits in place", "dead"
ACKED, DROPPED, RECLAIMED, SKIPPED, DELETED = "acked", "dropped", "reclaimed by age", "skipped", "deleted"
ENDS = {ACKED, DROPPED, RECLAIMED, SKIPPED, DELETED, UNSTORED}
UNSEEN = {*ENDS, WAITING}
"""Where a message is that no call lists."""

Event = dict[str, Any]


@dataclass
class Item:
    """One message.

    ``maybe_gone``: it is so old that a tick may have reclaimed it; ``counts``: its topic was not deleted since it died.
    """

    name: str
    group: str
    due_ms: int
    state: str = UNSTORED
    arrived_ms: int = 0
    counted: int = 0
    receipt: str = ""
    until_ms: int = 0
    maybe_gone: bool = False
    counts: bool = True

    @property
    def returns_to(self) -> str:
        """Where it goes when its lease ends without an ack: FIFO keeps what came from the topic itself in its place."""
        return WAITING if self.group == IN_ORDER and self.receipt.split(" ")[4] == "0" else RETRY


class Census:
    """The messages of one store directory, through many lives of its workers."""

    kind = "consume"
    settings = SETTINGS

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms
        self.items: dict[str, Item] = {}
        self.used: dict[str, str] = {}
        self.erased: set[str] = set()
        self.open_call: Event | None = None
        self.last_op = "idle"
        self._lag = {group: [0, 0, 0, 0] for group in TOPIC_OF}
        self._is_registered = dict.fromkeys(TOPIC_OF, False)

    def state_of(self) -> Event:
        """Return what the next worker needs to go on."""
        receipts = {group: [item.receipt for item in self._of(group) if item.receipt][-20:] for group in TOPIC_OF}
        return {"now": self.now_ms, "made": len(self.items), "receipts": receipts}

    def _of(self, group: str, *states: str) -> list[Item]:
        return [item for item in self.items.values() if item.group == group and (not states or item.state in states)]

    # ------------------------------------------------------------ following a worker

    def begin(self, event: Event) -> None:
        """Take note of a call before it is made."""
        self.open_call = event
        self.now_ms = event["now"]
        if event["op"].startswith("delete"):
            self.erased |= {item.name for item in self._of(event["group"])}
        if event["op"] == "send":
            for name, due_ms in event["messages"]:
                self.items[name] = Item(name, GROUP_OF[event["topic"]], -(-(due_ms or 0) // PRECISION_MS) * PRECISION_MS)

    def end(self, event: Event) -> None:
        """Check the answer of the open call and take it over."""
        call = self.open_call
        assert call is not None
        if call["op"] != "open":
            getattr(self, f"_after_{call['op']}")(call, event["result"])
        self._check_lag(event["lag"])
        self.last_op = call["op"]
        self.open_call = None

    def _check_lag(self, lag: dict[str, list[int]]) -> None:
        for group, found in lag.items():
            there = Counter(item.state for item in self._of(group))
            gone = sum(item.maybe_gone for item in self._of(group, READY))
            dead = sum(item.counts for item in self._of(group, DEAD))
            assert found[1:] == [there[HELD], there[RETRY] + there[WAITING], dead], f"group {group} stands at {found}, the book has {there}"
            assert there[READY] - gone <= found[0] <= there[READY], (
                f"group {group} stands at {found}, the book has {there}, {gone} may be gone"
            )
        self._lag = lag

    def _after_send(self, call: Event, count: int) -> None:
        assert count == len(call["messages"])
        for name, due_ms in call["messages"]:
            self.items[name].state, self.items[name].arrived_ms = (READY if due_ms is None else PENDING), self.now_ms

    def _after_tick(self, call: Event, result: Event) -> None:
        due = [item for item in self.items.values() if item.state == PENDING and item.due_ms <= self.now_ms]
        assert result["handed_over"] == len(due)
        for item in due:
            item.state, item.arrived_ms = READY, self.now_ms
        expired = [item for item in self.items.values() if item.state == HELD and item.until_ms <= self.now_ms]
        letters = {name for names in (result["letters"] or {}).values() for name in names}
        for item in expired:
            item.counted += 1
            is_dead = item.counted > MAX_RETRIES and (item.returns_to == RETRY or item.name in letters)
            item.state, item.counts = (DEAD if is_dead else item.returns_to), True
        dead = sum(item.state == DEAD for item in expired)
        assert (result["dead"], result["retried"]) == (dead, len(expired) - dead)
        if result["letters"] is not None:
            assert Counter(letters) == Counter(item.name for item in self.items.values() if item.state == DEAD)
        self._grow_old()

    def _grow_old(self) -> None:
        for item in self.items.values():
            item.maybe_gone = item.state == READY and (item.maybe_gone or item.arrived_ms < self.now_ms - RETENTION_MS)

    def _after_pop(self, call: Event, popped: list[list[Any]]) -> None:
        group = call["group"]
        ready, in_flight, retry, _ = self._lag[group]
        if group != IN_ORDER or not in_flight:
            assert len(popped) == min(call["wanted"], ready + retry), f"{len(popped)} popped of {call['wanted']}, lag {self._lag[group]}"
        for receipt, name, attempt in popped:
            item = self.items[name]
            assert item.group == group
            assert item.state in (READY, RETRY, WAITING), f"{item} was given to group {group}"
            assert attempt == item.counted + 1, f"{item} has attempt {attempt}"
            self._hold(item, receipt, self.now_ms + call["invisible"])
        self._is_registered[group] = True

    def _hold(self, item: Item, receipt: str, until_ms: int) -> None:
        assert receipt not in self.used, "two leases share a receipt"
        item.state, item.receipt, item.until_ms, item.maybe_gone = HELD, receipt, until_ms, False
        self.used[receipt] = item.name

    def _live(self, receipt: str) -> Item | None:
        """Return the message that a receipt holds now."""
        item = self.items[self.used[receipt]]
        return item if item.state == HELD and item.receipt == receipt else None

    def _outcomes(self, call: Event, outcomes: list[str], good: str) -> list[Item]:
        """Check what a call on receipts answered; returns the messages that it did something to."""
        done: list[Item] = []
        for receipt, outcome in zip(call["receipts"], outcomes, strict=True):
            item = self.items[self.used[receipt]]
            if self._live(receipt) is not None and item not in done:
                assert outcome == good, f"{item} answers {outcome}"
                done.append(item)
            elif item.state == ACKED and item.receipt == receipt and item.name not in self.erased:
                assert outcome == "ALREADY_ACKED", f"{item} answers {outcome}"
            elif item.state == ACKED and item.receipt == receipt:
                assert outcome in ("ALREADY_ACKED", "STALE", "UNKNOWN"), f"{item} answers {outcome}"
            else:
                assert outcome in ("STALE", "UNKNOWN"), f"{item} answers {outcome} to {receipt}"
        return done

    def _after_ack(self, call: Event, outcomes: list[str]) -> None:
        for item in self._outcomes(call, outcomes, "ACKED"):
            item.state = ACKED

    def _after_release(self, call: Event, outcomes: list[str]) -> None:
        for item in self._outcomes(call, outcomes, "RELEASED"):
            item.state = item.returns_to

    def _after_change(self, call: Event, results: list[list[Any]]) -> None:
        held = self._outcomes(call, [outcome for outcome, _ in results], "CHANGED")
        for receipt, (_, new) in zip(call["receipts"], results, strict=True):
            assert (new is not None) == (self.items[self.used[receipt]] in held and self.items[self.used[receipt]].receipt == receipt)
            if new is not None:
                self._hold(self.items[self.used[receipt]], new, self.now_ms + call["invisible"])

    def _after_resend(self, call: Event, count: int) -> None:
        assert count == len(call["names"])
        for name in call["names"]:
            item = self.items[name]
            assert item.state == DEAD
            item.state, item.counted, item.arrived_ms = self._resent(item), 0, self.now_ms

    def _resent(self, item: Item) -> str:
        return READY if item.group == IN_ORDER and self._is_registered[IN_ORDER] else RETRY

    def _after_drop(self, call: Event, count: int) -> None:
        assert count == len(call["names"])
        for name in call["names"]:
            assert self.items[name].state == DEAD
            self.items[name].state = DROPPED

    def _skipped(self, item: Item) -> bool:
        """Say whether a reset to the end passes a message over; what is in the retry topic, or leased from it, stays."""
        return item.state in (READY, WAITING) or (item.state == HELD and item.receipt.split(" ")[4] == "0")

    def _after_reset(self, call: Event, _: None) -> None:
        for item in self._of(call["group"]):
            item.state = SKIPPED if self._skipped(item) else item.state

    def _after_delete_topic(self, call: Event, _: None) -> None:
        for item in self._of(call["group"]):
            item.counts = False if item.state == DEAD else item.counts
            item.state = DELETED if item.state in (READY, HELD, RETRY, WAITING) else item.state
        self._is_registered[call["group"]] = False

    def _after_delete_group(self, call: Event, _: None) -> None:
        self._is_registered[call["group"]] = False

    # ------------------------------------------------------------ after a kill

    def check(self, store: Store) -> None:
        """Look up where everything is in a reopened store, and settle the call that was under way."""
        assert store.verify() == []
        call, self.open_call = self.open_call, None
        places, leases = self._look(store)
        targets = {} if call is None else self._targets(call)
        unsure = {name for name, item in self.items.items() if item.maybe_gone or item.state == WAITING}
        moved = {
            name
            for name, item in self.items.items()
            if self._settle(call or {"op": "idle"}, item, places.get(name), leases.get(name), targets.get(name, set()))
        }
        lag = lags(store)
        if call is not None:
            self._settle_in_place(call, lag)
            self._check_step(call, targets.keys() - unsure, moved if call["op"] == "pop" else moved - unsure)
        self._is_registered = dict.fromkeys(TOPIC_OF, False) | {each.group: True for each in store.groups.subscriptions()}
        for item in self.items.values():
            item.maybe_gone = False
        self._check_lag(lag)

    def _look(self, store: Store) -> tuple[dict[str, tuple[str, int]], dict[str, LeaseInfo]]:
        """Return (place, arrival in ms) of every message that can be seen, by name, and the leases; none is seen twice."""
        found: list[tuple[str, str, int]] = [(timer.message.message_id or "", PENDING, 0) for timer in store.scan(limit=10_000).timers]
        held = store.leases()
        found += [(each.message_id, HELD, 0) for each in held]
        for topic, group in GROUP_OF.items():
            found += [(letter.origin_message_id, DEAD, 0) for letter in store.dead_letters.list(group)]
            offsets = {(each.topic, each.queue_id): each.next_offset for each in store.groups.offsets(group)}
            for name, place in ((topic, READY), (retry_topic(group, topic), RETRY)):
                info = store.engine.pops.topic(name)
                for queue in range(0 if info is None else info.queues):
                    rows = store.engine.pops.read(name, queue, offsets.get((name, queue), 0), 10_000).messages
                    found += [(row.message_id or "", place, getattr(row, "store_ms", 0)) for row in rows]
        twice = [name for name, count in Counter(name for name, _, _ in found).items() if count > 1]
        assert not twice, f"in two places: {[each for each in found if each[0] in twice]}"
        return {name: (place, at_ms) for name, place, at_ms in found}, {each.message_id: each for each in held}

    def _targets(self, call: Event) -> dict[str, set[str]]:
        """Return, for each message that a call may move, where it may put it."""
        op, group = call["op"], call.get("group", "")
        if op == "send":
            return {name: {READY if due_ms is None else PENDING} for name, due_ms in call["messages"]}
        if op == "tick":
            due = {item.name: {READY} for item in self.items.values() if item.state == PENDING and item.due_ms <= self.now_ms}
            expired = [item for item in self.items.values() if item.state == HELD and item.until_ms <= self.now_ms]
            dying = {item.name: {item.returns_to, DEAD} if item.counted >= MAX_RETRIES else {item.returns_to} for item in expired}
            self._grow_old()
            return due | dying
        if op == "pop":
            return {item.name: {HELD} for item in self._of(group, READY, RETRY, WAITING)}
        if op in ("ack", "release", "change"):
            live = [item for item in map(self._live, call["receipts"]) if item is not None]
            return {item.name: {{"ack": ACKED, "release": item.returns_to, "change": HELD}[op]} for item in live}
        if op in ("resend", "drop"):
            return {name: {self._resent(self.items[name]) if op == "resend" else DROPPED} for name in call["names"]}
        if op == "reset":
            return {item.name: {SKIPPED} for item in self._of(group) if self._skipped(item)}
        if op == "delete_topic":
            return {item.name: {DELETED} for item in self._of(group, READY, HELD, RETRY, WAITING)}
        return {}

    def _settle(self, call: Event, item: Item, seen: tuple[str, int] | None, lease: LeaseInfo | None, targets: set[str]) -> bool:
        """Take over where a message is; returns whether it moved."""
        before, allowed = (item.state, item.receipt), {item.state, *targets} | ({RECLAIMED} if item.maybe_gone else set())
        if seen is not None:
            assert seen[0] in allowed, f"{item} is {seen[0]} after a kill in {call}; allowed is {allowed}"
            item.state, item.arrived_ms = seen[0], seen[1] or item.arrived_ms
        elif item.state not in UNSEEN:
            unseen = sorted(targets & UNSEEN) or sorted(allowed & UNSEEN)
            assert unseen, f"{item} is nowhere after a kill in {call}; allowed is {allowed}"
            item.state = unseen[0]
        if before[0] == HELD and call["op"] == "tick":
            item.counted += item.state != HELD
            item.counts = True
        if before[0] == DEAD and item.state != DEAD:
            item.counted = 0
        if lease is not None:
            if lease.receipt != item.receipt:
                assert HELD in targets, f"{item} is held by {lease.receipt}"
                assert lease.expiry_ms == self.now_ms + call["invisible"]
                self._hold(item, lease.receipt, lease.expiry_ms)
            assert (lease.group, lease.topic, lease.expiry_ms) == (item.group, TOPIC_OF[item.group], item.until_ms)
            assert lease.attempt == item.counted + 1
        return before != (item.state, item.receipt)

    def _settle_in_place(self, call: Event, lag: dict[str, list[int]]) -> None:
        """Settle by the counts what no call lists: what waits in its place, and which dead letters count."""
        if call["op"] not in ("reset", "delete_topic"):
            return
        group = call["group"]
        if lag[group][2] == len(self._of(group, RETRY)):
            for item in self._of(group, WAITING):
                item.state = SKIPPED if call["op"] == "reset" else DELETED
        if call["op"] == "delete_topic" and lag[group][3] == 0:
            for item in self._of(group, DEAD):
                item.counts = False

    def _check_step(self, call: Event, targets: set[str], moved: set[str]) -> None:
        """Check that a call happened for all that it was about or for nothing of it; a tick, step by step."""
        if call["op"] == "pop":
            ready, in_flight, retry, _ = self._lag[call["group"]]
            wanted = min(call["wanted"], ready + retry)
            popped = sum(self.items[name].state == HELD for name in moved)
            assert popped in (0, wanted) or (call["group"] == IN_ORDER and in_flight), f"{popped} of {wanted} popped"
            return
        steps = [targets]
        if call["op"] == "tick":
            # Those of one tick stay in the order in which they were sent.
            due = sorted((item for item in self.items.values() if item.name in targets and not item.receipt), key=lambda item: item.due_ms)
            steps = [targets - {item.name for item in due}]
            there = [item.name in moved for item in due]
            assert there == sorted(there, reverse=True), f"handed over out of order: {due}"
        for step in steps:
            assert moved & step in (set(), step), f"a part of {call} happened: {moved & step} of {step}"

    # ------------------------------------------------------------ the end of a run

    def drain(self, store: Store, clock: ManualClock) -> None:
        """Pop and ack everything there is, dead letters included, and check that each message has come to one end."""
        self.check(store)
        for _ in range(60):
            for group in TOPIC_OF:
                self._drain_group(store, group)
            if all(item.state in ENDS or item.maybe_gone for item in self.items.values()):
                break
            clock.advance(10_000)
            self.now_ms = clock.now_ms()
            self.do(store, "tick", lambda: do_tick(store))
        self.check(store)
        left = [item for item in self.items.values() if item.state not in ENDS]
        assert not left, f"not at an end: {left}"

    def _drain_group(self, store: Store, group: str) -> None:
        if letters := store.dead_letters.list(group):
            names = [letter.origin_message_id for letter in letters]
            self.do(store, "resend", lambda: store.dead_letters.resend(letters), group=group, names=names)
        popped = self.do(store, "pop", lambda: do_pop(store, group, 100, 1000), group=group, wanted=100, invisible=1000)
        receipts: list[str] = [receipt for receipt, _, _ in popped]
        self.do(store, "ack", lambda: [each.name for each in store.ack(receipts)], group=group, receipts=receipts)

    def do(self, store: Store, op: str, act: Callable[[], Any], **detail: object) -> Any:
        """Make a call of one's own, and follow it like a worker's."""
        self.begin({"op": op, "now": self.now_ms, **detail})
        result = act()
        self.end({"result": result, "lag": lags(store)})
        return result

    def fates(self) -> Counter[str]:
        """Return how many messages came to which end."""
        return Counter(item.state for item in self.items.values())
