"""X3: threads: no lost or double lease under contention, and an order of all calls that explains what they answered."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from rmqstore import AckOutcome, Message, PoppedMessage, SendReceipt, Store, SystemClock
from rmqstore.contract import CancelOutcome, ChangeOutcome, ChangeResult, Lag, Receipt, ReleaseOutcome, Side, Ticket
from rmqstore.errors import DelayTooLongError, StoreClosedError
from rmqstore_conformance.cases.scenes import THREADS, together
from rmqstore_conformance.data import groups, topics
from rmqstore_conformance.histories import Event, History, event, restless
from rmqstore_conformance.states import MarkState, MessageState, QueueState
from rmqstore_conformance.stores import START_MS, WIRED, Stores, id_of, label, message
from rmqstore_conformance.targets import Target

(T,) = topics(__name__, 1)
(G,) = groups(__name__, 1)

_FAR_MS = 3_600_000
_EACH_SENDS = 16


@pytest.mark.clause("T2")
def test_x3_the_background_thread_follows_a_manual_clock(stores: Stores) -> None:
    """§3: with services the store hands over by itself as soon as the clock is moved; a day passes in no time."""
    store = stores.open(services=True)
    store.send(message(1), delay_ms=86_400_000)
    stores.clock.advance(86_400_000)
    got = store.pop(T, G, wait_ms=60_000)
    assert [label(m) for m in got] == ["m1"]
    assert not isinstance(stores.clock, SystemClock)


@pytest.mark.clause("X3")
def test_x3_sends_of_many_threads_are_answered_one_by_one(stores: Stores) -> None:
    """X3: whatever goes to the disk together, each send has the handle of its own message, and one that is refused is refused alone."""
    store = stores.open(max_delay_ms=_FAR_MS)
    sent: list[tuple[str, SendReceipt]] = []

    def work(number: int) -> None:
        for step in range(_EACH_SENDS):
            name = f"{number}-{step}"
            if step % 4 == 3:
                with pytest.raises(DelayTooLongError):
                    store.send(message(name), delay_ms=_FAR_MS + 60_000)
            else:
                sent.append((name, store.send(message(name), delay_ms=_FAR_MS - number * 1000)))

    together(work)
    assert len({receipt.message_id for _, receipt in sent}) == len(sent) == store.pending().total == THREADS * _EACH_SENDS * 3 // 4
    kept = dict(sent[::2])
    assert store.cancel([receipt for _, receipt in sent[1::2]]) == [CancelOutcome.CANCELLED] * (len(sent) // 2)
    stores.clock.advance(_FAR_MS + 60_000)
    store.tick()
    got = store.pop(T, G, max_messages=len(sent))
    assert {label(each): each.message_id for each in got} == {f"m{name}": receipt.message_id for name, receipt in kept.items()}


# ---------------------------------------------------------------- beside a close


@pytest.mark.clause("X3")
@pytest.mark.parametrize("call", ["send", "send for later", "cancel", "ack"])
def test_f3_a_call_that_meets_a_close_says_whether_it_was_done(durable_stores: Stores, call: str) -> None:
    """F3: the store is closed while a call waits for the disk: it is answered and done, or refused and not done."""
    if WIRED:
        pytest.skip("here the store is closed within the call; over a connection that would be the server, from within")
    store = durable_stores.open()
    handle = store.send(message(0), delay=timedelta(days=1)).handle
    assert handle is not None
    store.send(message(1))
    (popped,) = store.pop(T, G, invisible=timedelta(days=1))
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: store.send(message(2)),
        "send for later": lambda: store.send(message(2), delay=timedelta(days=2)),
        "cancel": lambda: store.cancel(handle),
        "ack": lambda: store.ack(popped),
    }
    for side in (store.engine.timers, store.engine.pops):
        _close_before_sync(store, side)
    try:
        calls[call]()
        done = True
    except StoreClosedError:
        done = False
    again = durable_stores.open()
    there = {
        "send": again.lag(T, G).ready == 1,
        "send for later": again.pending().total == 2,
        "cancel": again.pending().total == 0,
        "ack": again.lag(T, G).in_flight == 0,
    }
    assert there[call] == done


def _close_before_sync(store: Store, side: Side) -> None:
    sync = side.sync

    def closed_first(ticket: Ticket | None = None) -> None:
        closing = threading.Thread(target=store.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive(), "the close waits for the call"
        sync(ticket)

    side.sync = closed_first  # type: ignore[method-assign]


# ---------------------------------------------------------------- recorded histories


Result = TypeVar("Result")
Told = tuple[str | None, Event]

EACH = 100
"""How many messages one thread sends, and how many timers another."""

TICKS = 20
ROUNDS = 50
HISTORIES, LEAST_HISTORIES = 50, 10
"""How many queues are raced for, one after the other; the second however little effort is asked for."""

LONG_MS = 10**9
SHORT_MS = 1500
MAX_RETRIES = 2


class Racers:
    """Threads on one store that share all that they hold, so that they end and change each other's leases, and repeat what was done."""

    def __init__(self, stores: Stores, seed: int) -> None:
        self.store: Store = stores.open(hand_over_limit=7, reclaim="age", max_retries=MAX_RETRIES)
        self.history = History()
        self._clock = stores.clock
        self._seed = seed
        self._held: list[PoppedMessage] = []
        self._handles: list[tuple[str | None, str]] = []
        self._ticks: list[Event] = []
        self._lock = threading.Lock()
        self._sending = threading.Barrier(THREADS, timeout=60)

    def run(self) -> None:
        """Let two threads send, one tick, one cancel, one handle dead letters, and the others consume."""
        self.store.topics.create(T, 2)
        with restless():
            together(self._work, THREADS)
        self._leftovers()

    def faults(self) -> list[str]:
        """Return the histories that nothing explains."""
        return self.history.faults(MessageState(max_retries=MAX_RETRIES))

    def _work(self, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        if number < 2:
            self._produce(number)
            return
        self._sending.wait()
        work: Callable[[random.Random], None] = {2: self._tick, 3: self._cancel, 4: self._operate}.get(number, self._consume)
        for _ in range({2: TICKS, 3: EACH}.get(number, ROUNDS)):
            work(chance)

    def _call(self, act: Callable[[], Result], told: Callable[[Result, int, int], Iterable[Told]], lasts_ms: int = 0) -> Result:
        """Make a call, and say what it did by what the clock said before and behind it, so long later where that is when a lease ends."""
        times: list[int] = []

        def timed() -> Result:
            times.append(self._clock.now_ms() + lasts_ms)
            result = act()
            times.append(self._clock.now_ms() + lasts_ms)
            return result

        return self.history.call(timed, lambda result: told(result, *times))

    # ------------------------------------------------------------ what the threads do

    def _produce(self, number: int) -> None:
        for n in range(EACH):
            # Half of them come before the other threads go on, so that these find something, half of them race these.
            if n == EACH // 2:
                self._sending.wait()
            if number == 0:
                self._send(message(f"s{n}"))
            else:
                self._send(message(f"t{n}", deliver_at_ms=START_MS + 1000 * (1 + n % TICKS)))

    def _send(self, sent: Message) -> None:
        def told(receipt: SendReceipt, *_: int) -> list[Told]:
            # What is due by now goes straight to its topic.
            call, due_ms = ("schedule", sent.deliver_at_ms or 0) if receipt.handle else ("send", 0)
            return [(label(sent), event(call, "sent", high_ms=due_ms))]

        receipt = self._call(lambda: self.store.send(sent), told)
        if receipt.handle:
            with self._lock:
                self._handles.append((label(sent), receipt.handle))

    def _tick(self, chance: random.Random) -> None:
        for _ in range(3):
            self._consume(chance)
        self._clock.advance(1000)
        now_ms = self._clock.now_ms()
        begin = self.history.now()
        self.store.tick()
        self._ticks.append(Event("tick", "done", "", begin, self.history.now(), 2, low_ms=now_ms, high_ms=now_ms))

    def _cancel(self, chance: random.Random) -> None:
        with self._lock:
            name, handle = chance.choice(self._handles)
        self._call(lambda: self.store.cancel(handle), lambda outcome, *_: [(name, event("cancel", outcome.name))])

    def _operate(self, chance: random.Random) -> None:
        letters = self.store.dead_letters.list(G)
        self.store.groups.set(G, backoff=[timedelta(seconds=chance.randint(1, 5))])
        if letters:
            letter = chance.choice(letters)
            name = label(letter.message)
            if chance.random() < 0.7:
                self._call(lambda: self.store.dead_letters.resend([letter]), lambda count, *_: [(name, event("resend", str(count == 1)))])
            else:
                self._call(lambda: self.store.dead_letters.drop([letter]), lambda count, *_: [(name, event("drop", str(count == 1)))])
        name = f"m{chance.choice('st')}{chance.randrange(EACH)}"
        self._call(
            lambda: self.store.where(id=id_of(name)),
            lambda found, *_: [
                (name, event("seen", each.state.name)) for each in found if each.state.name in ("LEASED", "BACKING_OFF", "READY", "RETRY")
            ],
        )

    def _consume(self, chance: random.Random) -> None:
        attempt = f"a{chance.randrange(40)}" if chance.random() < 0.3 else None
        leased_ms = SHORT_MS if attempt is None and chance.random() < 0.5 else LONG_MS
        call = "pop" if attempt is None else "pop_again"
        popped = self._call(
            lambda: self.store.pop(T, G, max_messages=4, invisible_ms=leased_ms, attempt_id=attempt),
            lambda found, low, high: [
                (label(each), event(call, "given", each.receipt or "", attempt=each.attempt, low_ms=low, high_ms=high)) for each in found
            ],
            leased_ms,
        )
        with self._lock:
            self._held += popped
            chosen = chance.sample(self._held, min(3, len(self._held)))
        if chosen:
            self._end(chance.choice(("ack", "ack", "release", "reject", "change", "later")), chosen)

    def _end(self, how: str, chosen: list[PoppedMessage]) -> None:
        store = self.store
        ends: dict[str, Callable[[], list[Any]]] = {
            "ack": lambda: store.ack(chosen),
            "release": lambda: store.release(chosen),
            "reject": lambda: store.reject(chosen, reason="no"),
            "change": lambda: store.change_invisible(chosen, invisible_ms=SHORT_MS),
            "later": lambda: store.retry_later(chosen, delay_ms=SHORT_MS, reason="why"),
        }

        def told(results: list[Any], low: int, high: int) -> Iterator[Told]:
            for each, result in zip(chosen, results, strict=True):
                if isinstance(result, ChangeResult):
                    new = "" if result.receipt is None else result.receipt.text()
                    lease = {"new": new, "low_ms": low, "high_ms": high}
                    yield label(each), event(how, result.outcome.name, each.receipt or "", **lease)
                else:
                    yield label(each), event(how, result.name, each.receipt or "")

        results = self._call(ends[how], told, SHORT_MS)
        with self._lock:
            changed = [each for each in results if isinstance(each, ChangeResult) and each.outcome is ChangeOutcome.CHANGED]
            self._held += [each.message for each in changed if each.message is not None]

    # ------------------------------------------------------------ what is found out afterwards

    def _leftovers(self) -> None:
        """Say of every message where it is at the end, and what the ticks may have done with it."""
        store = self.store
        end = self.history.now()
        places: dict[str, set[str | None]] = {
            "pending": {label(timer.message) for timer in store.scan(limit=10_000).timers},
            "leased": {label(each) for each in store.leases(group=G)},
            "dead": {label(each.message) for each in store.dead_letters.list(G)},
            "ready": set(),
        }
        lag = store.lag(T, G)
        while popped := store.pop(T, G, max_messages=1024, invisible_ms=LONG_MS):
            places["ready"] |= {label(each) for each in popped}
        sizes = {name: len(found) for name, found in places.items()}
        assert (lag.ready + lag.retry, lag.in_flight + lag.backing_off, lag.dead) == (sizes["ready"], sizes["leased"], sizes["dead"])
        assert store.pending().total == sizes["pending"]
        for name in self.history.names:
            own = self.history.of(name)
            where = [place for place, names in places.items() if name in names]
            assert len(where) <= 1, f"message {name} is {' and '.join(where)}"
            gone = "dropped" if any(each.call == "drop" and each.answer == "True" for each in own) else "gone"
            self.history.note(name, Event("left", where[0] if where else gone, "", end, end, -1))
            for tick in self._ticks_of(own):
                self.history.note(name, tick)

    def _ticks_of(self, own: list[Event]) -> list[Event]:
        """Return the steps of ticks that may concern a message: the first ones for which it is due, and those for which a lease ends."""
        found: list[Event] = []
        ends = [each.low_ms for each in own if each.call in ("pop", "pop_again", "change", "later") and each.low_ms < START_MS + LONG_MS]
        sent = next(each for each in own if each.call in ("send", "schedule"))
        is_handed = sent.call == "send"
        for tick in self._ticks:
            if not is_handed and tick.low_ms >= sent.high_ms and tick.end >= sent.begin:
                found += [tick._replace(call="seal"), tick._replace(call="deliver")]
                is_handed = tick.begin > sent.end
            if ends and tick.low_ms >= min(ends):
                found.append(tick._replace(call="revive"))
        return found


@pytest.mark.clause("H4", "C1", "C2", "P1", "P3", "P4", "P5", "P6", "P7", "T2")
def test_x3_an_order_of_the_calls_explains_every_answer(stores: Stores, seed: int, tell: Callable[[object], None]) -> None:
    """X3: eight threads race on the same timers, leases and dead letters: for each message some order of the calls explains all answers."""
    racers = Racers(stores, seed)
    racers.run()
    faults = racers.faults()
    tell(f"{racers.history.size} answers of {THREADS} threads")
    assert not faults, f"seed {seed}: no order of the calls explains the answers about message\n" + "\n".join(faults[:3])
    assert racers.store.verify() == []


# ---------------------------------------------------------------- marks


@pytest.mark.clause("I1")
def test_x3_a_mark_that_threads_race_for_is_stored_once(stores: Stores, seed: int, tell: Callable[[object], None]) -> None:
    """X3: threads repeat each other's sends, for now and for later, by the same marks: one of each is stored, all get its id or handle."""
    store = stores.open()
    history = History()

    def send(mark: str, delay_ms: int | None) -> None:
        def told(receipt: SendReceipt) -> list[Told]:
            return [(mark, event("send", "REPEATED" if receipt.repeated else "APPLIED", receipt.handle or receipt.message_id))]

        history.call(lambda: store.send(Message(T, mark.encode()), delay_ms=delay_ms, marks=[mark.encode()]), told)

    def work(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        for n in range(40):
            if chance.random() < 0.5:
                send(f"later {chance.randrange(n // 2 + 1)}", 60_000)
            else:
                send(f"now {chance.randrange(n // 2 + 1)}", None)

    with restless():
        together(work)
    faults = history.faults(MarkState())
    tell(f"{history.size} sends with {len(history.names)} marks")
    assert not faults, f"seed {seed}: no order of the calls explains the answers about mark\n" + "\n".join(faults[:3])
    now = sorted(each.body.decode() for each in store.read(T, 0, 0, 1000).messages)
    later = sorted(each.message.body.decode() for each in store.scan(limit=1000).timers)
    assert sorted([*now, *later]) == history.names


# ---------------------------------------------------------------- queues, whole


class QueueRacers:
    """Threads that send to one queue, pop it, end leases, and ask how it stands: with a limit of leases, or in order without one."""

    def __init__(self, store: Store, seed: str, limit: int) -> None:
        self.history = History()
        self._store = store
        self._seed = seed
        self._topic, self._group = f"q{seed}", f"g{seed}"
        self._in_order = not limit
        self._held: list[tuple[int, str]] = []

    def run(self) -> None:
        """Let six threads make eight calls each."""
        self._store.topics.create(self._topic, 1)
        with restless():
            together(self._work, 6)
        # Where a send was put is known now.
        offsets = {label(each): at for at, each in enumerate(self._store.read(self._topic, 0, 0, 1000).messages)}
        own = self.history.of("queue")
        for at, each in enumerate(own):
            if each.call == "append":
                own[at] = each._replace(found=tuple((offsets[f"m{name}"], "") for name in each.answer.split()))

    def _work(self, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        for n in range(8):
            kind = chance.random()
            if kind < 0.3:
                self._send([f"{number}-{n}-{row}" for row in range(chance.randint(1, 2))])
            elif kind < 0.6:
                self._pop(chance.randint(1, 3))
            elif kind < 0.85 and (known := list(self._held)):
                self._end("release" if self._in_order and chance.random() < 0.4 else "ack", *chance.choice(known))
            else:
                self.history.call(lambda: self._store.lag(self._topic, self._group), self._told_of_lag)

    def _send(self, names: list[str]) -> None:
        rows = [message(each, self._topic, message_group="x" if self._in_order else None) for each in names]
        self.history.call(lambda: self._store.send_batch(rows), lambda _: [("queue", event("append", " ".join(names)))])

    def _pop(self, wanted: int) -> None:
        def told(popped: list[PoppedMessage]) -> list[Told]:
            found = [(each.queue_offset, each.receipt or "") for each in popped]
            self._held += found
            return [("queue", event("pop", "given", attempt=wanted, found=tuple(found)))]

        pop = self._store.pop
        self.history.call(
            lambda: pop(self._topic, self._group, max_messages=wanted, invisible_ms=LONG_MS, order=self._in_order, queue=0), told
        )

    def _end(self, call: str, offset: int, receipt: str) -> None:
        def told(outcome: AckOutcome | ReleaseOutcome) -> list[Told]:
            return [("queue", event(call, outcome.name, receipt, found=((offset, receipt),)))]

        self.history.call(lambda: self._store.ack(receipt) if call == "ack" else self._store.release(receipt), told)

    @staticmethod
    def _told_of_lag(lag: Lag) -> list[Told]:
        return [("queue", event("lag", "is", found=((lag.ready, "ready"), (lag.in_flight, "in flight"), (lag.retry, "retry"))))]


@pytest.mark.clause("P1", "P2", "P12", "P14")
def test_x3_an_order_of_the_calls_explains_how_a_queue_stands(stores: Stores, seed: int, target: Target) -> None:
    """X3: threads send, pop up to a limit of leases, ack, ask for the lag: one order of them explains offsets, leases and counts."""
    store = stores.open(max_in_flight=4)
    for n in range(max(target.times(HISTORIES), LEAST_HISTORIES)):
        racers = QueueRacers(store, f"{seed}-{n}", 4)
        racers.run()
        faults = racers.history.faults(QueueState(limit=4))
        assert not faults, f"seed {seed}: no order of the calls explains the answers about\n{faults[0]}"
        receipts = [Receipt.parse(each.found[0][1]) for each in racers.history.of("queue") if each.call == "pop" and each.found]
        times = [each.pop_time_ms for each in receipts if each is not None]
        assert len(set(times)) == len(receipts), "two pops of one queue have one time"


@pytest.mark.needs("fifo")
@pytest.mark.clause("P9", "P14")
def test_x3_an_order_of_the_calls_explains_how_a_run_stands(engine_stores: Stores, seed: int, target: Target) -> None:
    """X3: threads send, pop in order, ack, release, and ask for the lag: one order of them explains runs, places and every count."""
    store = engine_stores.open()
    for n in range(max(target.times(HISTORIES), LEAST_HISTORIES)):
        racers = QueueRacers(store, f"{seed}-{n}", 0)
        racers.run()
        faults = racers.history.faults(QueueState())
        assert not faults, f"seed {seed}: no order of the calls explains the answers about\n{faults[0]}"
