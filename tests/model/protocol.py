"""Explicit-state model of the hand-over from timers to pops: the states and the steps; docs/handover.md tells what they mean.

Two disks, one of the timer log and one of the pop log, each with a volatile tail over a durable prefix. A crash keeps any prefix that is
at least the durable one, of each side on its own; with ``one_log`` it keeps a prefix of the common log. A sync may happen at any moment,
so one model covers ``flush=sync`` (an answer is given when its record is durable) and ``flush=async`` (the answer is given earlier, and
is held to only if its record survived). From a state in which no tick is running the store can be drained: the clock goes to its end,
ticks follow until nothing is due, and each message is judged against the clauses of docs/contract.md. handover_model.py searches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

Corners = tuple[tuple[int, int], ...]
"""A cursor, or what is sealed: corners (tick, seq)."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One protocol and the bounds within which it is searched; the defaults are the protocol of rmqstore."""

    cursor: Literal["stairs", "pair"] = "stairs"
    """A staircase, or one (tick, seq) that is compared as a pair."""
    hold: bool = True
    """``due`` gives only ticks up to the last ``until``."""
    seal_record: bool = True
    """A seal is a record of the timer log; else it lives in memory only."""
    seal_at_open: bool = False
    """A reopen seals what is due."""
    presync: Literal["soft", "rests-on", "never"] = "soft"
    """``timers.sync`` before ``apply`` when any put or cancel is not durable; only when the new cursor covers one, or the put of one."""
    handle: Literal["epoch", "seq"] = "epoch"
    """A handle names (open epoch, seq), or the bare seq."""
    answer: Literal["tombstone", "handle"] = "tombstone"
    """ALREADY_DELIVERED is read from a kept put or its tombstone, or worked out from the handle."""
    answer_synced: bool = True
    """The ticket of ALREADY_DELIVERED covers the seal record."""
    cut: Literal["seal", "apply"] = "seal"
    """From when on a cancel comes too late."""
    next_seq: Literal["cursor", "log"] = "cursor"
    """After a reopen the next seq is above every seq in log and cursor, or only above those in the log."""
    forget: Literal["durable", "volatile", "lexical"] = "durable"
    """Timers reclaim what the durable or the volatile cursor covers, or what is at or before the first corner as a (tick, seq) pair."""
    forget_synced: bool = True
    """What was reclaimed stays so over a crash; else a crash brings all of it back."""
    max_corners: int = 99
    drop_checked: bool = True
    """A corner of a cursor that is too long is dropped only when nothing under it is left."""
    one_log: bool = False
    """Timers and pops share one atomic log."""

    messages: int = 2
    ticks: int = 3
    limit: int = 1
    """Messages in one batch."""
    crashes: int = 2
    set_backs: int = 1
    cancels: int = 2
    resend: bool = False
    """A put that a crash lost is sent again."""
    max_states: int = 1_500_000
    """The search gives up there."""


# ---------------------------------------------------------------- the staircase


def stairs(corners: Iterable[tuple[int, int]]) -> Corners:
    """Return the corners that no other one dominates, tick falling and seq rising."""
    kept: list[tuple[int, int]] = []
    highest_seq = 0
    for tick, seq in sorted(set(corners), reverse=True):
        if tick >= 1 and seq > highest_seq:
            kept.append((tick, seq))
            highest_seq = seq
    return tuple(kept)


def stairs_cover(corners: Corners, tick: int, seq: int) -> bool:
    """Say whether some corner is at least ``(tick, seq)`` in both coordinates."""
    return any(corner_tick >= tick and corner_seq >= seq for corner_tick, corner_seq in corners)


def sealed_by(sealed: Corners, put: Put) -> bool:
    """Say whether a put is closed."""
    return stairs_cover(sealed, put.tick, put.seq)


# ---------------------------------------------------------------- the state


class Put(NamedTuple):
    """One timer in the timer log."""

    message: int
    tick: int
    seq: int
    epoch: int
    stamp: int

    @property
    def place(self) -> tuple[int, int]:
        """The position in (tick, seq) order."""
        return self.tick, self.seq


class Cancelled(NamedTuple):
    """A cancel in the timer log; ``epoch`` 0 names the put of any epoch."""

    seq: int
    epoch: int
    message: int
    stamp: int


class Sealed(NamedTuple):
    """A seal record in the timer log: the whole sealed set."""

    sealed: Corners
    stamp: int


class Delivery(NamedTuple):
    """One ``apply`` in the pop log: messages and cursor in one step."""

    messages: tuple[int, ...]
    cursor: Corners
    stamp: int


Record = Put | Cancelled | Sealed


class Memory(NamedTuple):
    """What the timer side holds in memory: the sealed set, the last ``until`` and the last seq it closed, the next seq."""

    sealed: Corners
    until: int
    last_seq: int
    next_seq: int


class Step(NamedTuple):
    """Where the running tick is: idle, sealed, due (with its batch), applied; or the store is down."""

    at: Literal["idle", "sealed", "due", "applied", "down"]
    messages: tuple[int, ...] = ()
    cursor: Corners = ()


class Caller(NamedTuple):
    """What the sender of one message knows: its handle, and the answer to the last cancel with the log position that it rests on."""

    deliver: int
    epoch: int
    seq: int
    answer: str
    answer_at: int
    was_due: bool


CANCELLED, ALREADY_DELIVERED, UNKNOWN = "CANCELLED", "ALREADY_DELIVERED", "UNKNOWN"
IDLE, SEALED, APPLIED, DOWN = Step("idle"), Step("sealed"), Step("applied"), Step("down")
NOT_SENT = Caller(0, 0, 0, "", -1, was_due=False)


class State(msgspec.Struct, frozen=True, gc=False):
    """Everything there is. ``set_backs``, ``crashes`` and ``cancels`` count down; ``stamp`` orders the records of both logs."""

    now: int
    set_backs: int
    crashes: int
    up: bool
    epoch: int
    timers: tuple[Record, ...]
    timers_durable: int
    pops: tuple[Delivery, ...]
    pops_durable: int
    reclaimed: frozenset[int]
    memory: Memory
    step: Step
    callers: tuple[Caller, ...]
    cancels: int
    stamp: int

    @property
    def puts(self) -> list[Put]:
        """The puts in the timer log."""
        return [record for record in self.timers if isinstance(record, Put)]

    @property
    def kept(self) -> list[Put]:
        """The puts in the timer log that are not reclaimed."""
        return [record for record in self.timers if isinstance(record, Put) and record.seq not in self.reclaimed]

    @property
    def delivered(self) -> set[int]:
        """The messages in their topic."""
        return {message for delivery in self.pops for message in delivery.messages}

    def put_of(self, message: int) -> Put | None:
        """Return the put of ``message`` in the timer log."""
        return next((put for put in self.puts if put.message == message), None)

    def cancel_at(self, put: Put) -> int | None:
        """Return the log position of the cancel of ``put``."""
        for position, record in enumerate(self.timers):
            if isinstance(record, Cancelled) and record.seq == put.seq and record.epoch in (put.epoch, 0):
                return position
        return None


class Violation(Exception):
    """A clause is broken; ``steps`` are those that a drain took to show it."""

    def __init__(self, message: str, steps: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.steps = list(steps)


Successor = tuple[str, State]


# ---------------------------------------------------------------- the protocol


class Model:
    """All that can happen to a store under one protocol."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()

    def start(self) -> State:
        """Return the state of an empty store at time 0."""
        return State(
            now=0,
            set_backs=self.settings.set_backs,
            crashes=self.settings.crashes,
            up=True,
            epoch=1,
            timers=(),
            timers_durable=0,
            pops=(),
            pops_durable=0,
            reclaimed=frozenset(),
            memory=self._fresh_memory(),
            step=IDLE,
            callers=(NOT_SENT,) * self.settings.messages,
            cancels=self.settings.cancels,
            stamp=0,
        )

    def successors(self, st: State) -> Iterator[Successor]:
        """Yield every next step with the state it leads to.

        Raises:
            Violation: a step shows that a clause is broken.
        """
        if st.now < self.settings.ticks:
            yield f"clock goes on to {st.now + 1}", replace(st, now=st.now + 1)
        if st.set_backs:
            for now in range(st.now):
                yield f"clock is set back to {now}", replace(st, now=now, set_backs=st.set_backs - 1)
        if not st.up:
            yield "open again", self.reopen(st)
            return
        yield self.tick_step(st)
        yield from self._syncs(st)
        yield from self._puts(st)
        if st.cancels:
            for message, caller in enumerate(st.callers):
                if caller.deliver:
                    yield self._cancel(st, message)
        if st.crashes:
            yield from self._crashes(st)

    # ------------------------------------------------------------ one tick

    def tick_step(self, st: State) -> Successor:
        """Take the next step of ``Store.tick``: seal, due with its sync, apply, forget, and round again until nothing is due."""
        if st.step.at == "idle":
            sealed = replace(self._seal(st, st.now), step=SEALED)
            return f"tick({st.now}): seal({st.now})", self._end_if_drained(sealed)
        if st.step.at == "sealed":
            return self._due_step(st)
        if st.step.at == "due":
            return "apply the batch", self._apply(st)
        cursor = self._cursor(st.pops if self.settings.forget == "volatile" else st.pops[: st.pops_durable])
        forgotten = replace(st, reclaimed=self._forget(st, cursor), step=SEALED)
        return f"forget({_shown(cursor)})", self._end_if_drained(forgotten)

    def _due_step(self, st: State) -> Successor:
        messages, cursor = self._due(st)
        if not messages:
            self._check_drained(st)
            return "nothing is due", replace(st, step=IDLE)
        durable = self._presync(st, cursor)  # `due` is pure, so it may go together with the sync behind it
        synced = "; timers.sync" if durable > st.timers_durable else ""
        given = ", ".join(f"m{message}" for message in messages)
        label = f"due gives {given} with the cursor {_shown(cursor)}{synced}"
        return label, replace(st, timers_durable=durable, step=Step("due", messages, cursor))

    def _presync(self, st: State, cursor: Corners) -> int:
        """Return the durable length of the timer log when ``apply`` begins."""
        changes = [position for position, record in enumerate(st.timers) if not isinstance(record, Sealed)]
        sync = self.settings.presync == "soft" and max(changes) >= st.timers_durable
        if self.settings.presync == "rests-on":
            covered = [put for put in st.puts if self._covers(cursor, put)]
            sync = max(max(st.timers.index(put), st.cancel_at(put) or 0) for put in covered) >= st.timers_durable
        return len(st.timers) if sync else st.timers_durable

    def _end_if_drained(self, st: State) -> State:
        if self._due(st)[0]:
            return st
        self._check_drained(st)
        return replace(st, step=IDLE)

    def _seal(self, st: State, until: int) -> State:
        memory = st.memory
        last_seq = memory.next_seq - 1
        timers, stamp = st.timers, st.stamp
        sealed = stairs((*memory.sealed, (until, last_seq)))
        if not any(sealed_by(sealed, put) and not sealed_by(memory.sealed, put) for put in st.kept):
            sealed = memory.sealed  # an idle seal writes nothing and remembers nothing
        if self.settings.seal_record and sealed != memory.sealed:
            timers, stamp = (*timers, Sealed(sealed, stamp)), stamp + 1
        return replace(
            st,
            timers=timers,
            memory=Memory(sealed, until, last_seq, memory.next_seq),
            callers=_due_by(st.callers, until),
            stamp=stamp,
        )

    def _due(self, st: State) -> tuple[tuple[int, ...], Corners]:
        """Return what ``due(pops.timer_cursor(), limit)`` gives: messages, and the cursor behind them."""
        cursor = self._cursor(st.pops)
        found = [
            put
            for put in st.kept
            if sealed_by(st.memory.sealed, put) and not self._covers(cursor, put) and st.cancel_at(put) is None
            if put.tick <= st.memory.until or not self.settings.hold
        ]
        found.sort(key=lambda put: put.place)
        given, left = found[: self.settings.limit], found[self.settings.limit :]
        if not given:
            return (), cursor
        return tuple(put.message for put in given), self._advanced(st, cursor, given, given[-1].place if left else None)

    def _covers(self, cursor: Corners, put: Put) -> bool:
        """Say whether a cursor claims that a put was handed over."""
        if self.settings.cursor == "pair":
            return bool(cursor) and put.place <= cursor[0]
        return stairs_cover(cursor, put.tick, put.seq)

    def _advanced(self, st: State, cursor: Corners, given: Sequence[Put], end: tuple[int, int] | None) -> Corners:
        """Return the cursor behind a batch that ends at ``end``, None when nothing is left."""
        if self.settings.cursor == "pair":
            return (given[-1].place,)
        passed: list[tuple[int, int]] = []
        for sealed_tick, seq in st.memory.sealed:
            tick = min(sealed_tick, st.memory.until) if self.settings.hold else sealed_tick
            if end is None or tick < end[0]:
                passed.append((tick, seq))
            else:
                passed += [(end[0], min(end[1], seq)), (end[0] - 1, seq)]
        cursor = stairs((*cursor, *passed))
        while len(cursor) > self.settings.max_corners:
            if self.settings.drop_checked and any(stairs_cover(cursor[:1], put.tick, put.seq) for put in st.kept):
                break
            cursor = cursor[1:]
        return cursor

    def _apply(self, st: State) -> State:
        messages, cursor = st.step.messages, st.step.cursor
        there = st.delivered
        for row, message in enumerate(messages):
            caller = st.callers[message]
            if caller.deliver > st.memory.until:
                raise Violation(f"T1: m{message} of tick {caller.deliver} is handed over early, by tick({st.memory.until})")
            if message in there:
                raise Violation(f"H1: m{message} is handed over twice")
            if caller.answer == CANCELLED:
                raise Violation(f"C1: m{message} was CANCELLED and is handed over")
            self._check_order(st, message, there.union(messages[: row + 1]))
        return replace(st, pops=(*st.pops, Delivery(messages, cursor, st.stamp)), step=APPLIED, stamp=st.stamp + 1)

    def _check_order(self, st: State, message: int, there: set[int]) -> None:
        """What the same seal closed and sorts before ``message`` must be out already (T3)."""
        put = st.put_of(message)
        if put is None:
            return
        for other in st.kept:
            if other.message in there or st.cancel_at(other) is not None:
                continue
            if other.tick <= st.memory.until and other.seq <= st.memory.last_seq and other.place < put.place:
                raise Violation(f"T3: m{message} is handed over before m{other.message}")

    def _check_drained(self, st: State) -> None:
        """Behind a drained tick nothing is left that was due and was put before its seal (T2, T4)."""
        until, there = st.memory.until, st.delivered
        for put in st.puts:
            if put.tick <= until and put.seq <= st.memory.last_seq and put.message not in there and st.cancel_at(put) is None:
                cursor = _shown(self._cursor(st.pops))
                raise Violation(f"T2: tick({until}) found nothing more, but m{put.message} of tick {put.tick} is not out; cursor {cursor}")

    def _forget(self, st: State, cursor: Corners) -> frozenset[int]:
        if self.settings.forget == "lexical":
            covered = [put.seq for put in st.kept if cursor and put.place <= cursor[0]]
        else:
            covered = [put.seq for put in st.kept if self._covers(cursor, put)]
        return st.reclaimed.union(covered)

    # ------------------------------------------------------------ the callers

    def _puts(self, st: State) -> Iterator[Successor]:
        """Messages are sent in the order of their numbers, since which is which does not matter; what was lost may be sent again."""
        for message, caller in enumerate(st.callers):
            if caller.deliver and not (self.settings.resend and st.put_of(message) is None):
                continue
            for deliver in [caller.deliver] if caller.deliver else range(1, self.settings.ticks + 1):
                yield self._put(st, message, deliver)
            if not caller.deliver:
                return

    def _put(self, st: State, message: int, deliver: int) -> Successor:
        memory = st.memory
        put = Put(message, deliver, memory.next_seq, st.epoch, st.stamp)
        caller = Caller(deliver, st.epoch, put.seq, "", -1, was_due=deliver <= st.now)
        return f"put m{message} for tick {deliver} as seq {put.seq}", replace(
            st,
            timers=(*st.timers, put),
            memory=memory._replace(next_seq=memory.next_seq + 1),
            callers=_with(st.callers, message, caller),
            stamp=st.stamp + 1,
        )

    def _cancel(self, st: State, message: int) -> Successor:
        caller = st.callers[message]
        there = st.delivered
        named = [put for put in st.puts if put.seq == caller.seq and (self.settings.handle == "seq" or put.epoch == caller.epoch)]
        if not named:
            return self._cancel_lost(st, message)
        put = named[0]
        if put.message != message:
            raise Violation(f"C6: the cancel of m{message} by its handle hits m{put.message}")
        cancel_at = st.cancel_at(put)
        covered = self._covers(self._cursor(st.pops), put)
        closed = covered or (self.settings.cut == "seal" and sealed_by(st.memory.sealed, put))
        answer = ALREADY_DELIVERED if cancel_at is None and closed else CANCELLED
        if caller.answer not in ("", answer):
            raise Violation(f"C4: the cancel of m{message} said {caller.answer}, now it says {answer}")
        sealed_since = covered or (self.settings.seal_record and self._seals_of(st, put))
        may_be_late = sealed_since or caller.was_due or message in there or caller.deliver <= st.now
        if answer == ALREADY_DELIVERED and not may_be_late:
            raise Violation(
                f"C1: the cancel of m{message} is refused, but tick {caller.deliver} was not sealed since the put (now {st.now})"
            )
        if answer == CANCELLED and message in there:
            raise Violation(f"C2: the cancel of m{message} says CANCELLED, but m{message} is in its topic")
        timers, stamp = st.timers, st.stamp
        if answer == ALREADY_DELIVERED:
            rests_on = self._answer_rests_on(st, put)
        elif cancel_at is None:
            rests_on = len(timers)
            epoch = caller.epoch if self.settings.handle == "epoch" else 0
            timers, stamp = (*timers, Cancelled(caller.seq, epoch, message, stamp)), stamp + 1
        else:
            rests_on = cancel_at
        told = caller._replace(answer=answer, answer_at=rests_on)
        return f"cancel m{message}: {answer}", replace(
            st, timers=timers, callers=_with(st.callers, message, told), cancels=st.cancels - 1, stamp=stamp
        )

    def _cancel_lost(self, st: State, message: int) -> Successor:
        """A cancel whose put is not in the log."""
        caller = st.callers[message]
        answer = UNKNOWN
        if self.settings.answer == "handle":
            guess = Put(message, caller.deliver, caller.seq, caller.epoch, 0)
            if self._covers(self._cursor(st.pops), guess) or sealed_by(st.memory.sealed, guess):
                answer = ALREADY_DELIVERED
        if answer == ALREADY_DELIVERED and message not in st.delivered:
            raise Violation(f"C3: the cancel of m{message} says ALREADY_DELIVERED, but m{message} was lost and never handed over")
        if answer == UNKNOWN and st.put_of(message) is not None:
            raise Violation(f"C3: the cancel of m{message} says UNKNOWN, but m{message} is there")
        return f"cancel m{message}: {answer}", replace(st, cancels=st.cancels - 1)

    def _seals_of(self, st: State, put: Put) -> list[int]:
        """Return the log positions of the seal records behind ``put`` that close it."""
        return [
            position
            for position, record in enumerate(st.timers)
            if isinstance(record, Sealed) and record.stamp > put.stamp and sealed_by(record.sealed, put)
        ]

    def _answer_rests_on(self, st: State, put: Put) -> int:
        """Return the log position that must be durable for ALREADY_DELIVERED to hold."""
        if self.settings.seal_record and self.settings.answer_synced:
            for position in self._seals_of(st, put):
                return position
        return st.timers.index(put)

    # ------------------------------------------------------------ disk, crash, reopen

    def _syncs(self, st: State) -> Iterator[Successor]:
        """A sync only narrows what a crash may lose, so it is taken only where the protocol looks at durability."""
        if st.step.at == "applied" and st.pops_durable < len(st.pops):
            if self.settings.one_log:
                label, after = self.tick_step(replace(st, timers_durable=len(st.timers), pops_durable=len(st.pops)))
                yield f"sync; {label}", after
            else:
                label, after = self.tick_step(replace(st, pops_durable=len(st.pops)))
                yield f"pops.sync; {label}", after

    def _crashes(self, st: State) -> Iterator[Successor]:
        for timers_kept, pops_kept in sorted(self._cuts(st)):
            label = f"crash: {timers_kept} of {len(st.timers)} timer records and {pops_kept} of {len(st.pops)} pop records are kept"
            yield label, self._crash(st, timers_kept, pops_kept)

    def _cuts(self, st: State) -> set[tuple[int, int]]:
        """Return every (timer records, pop records) that a crash may leave."""
        if not self.settings.one_log:
            return {(a, b) for a in range(st.timers_durable, len(st.timers) + 1) for b in range(st.pops_durable, len(st.pops) + 1)}
        records = (*st.timers, *st.pops)
        durable = (*st.timers[: st.timers_durable], *st.pops[: st.pops_durable])
        lowest = max((record.stamp for record in durable), default=-1)
        ends = [-1] + [record.stamp for record in records]
        return {
            (sum(record.stamp <= end for record in st.timers), sum(delivery.stamp <= end for delivery in st.pops))
            for end in ends
            if end >= lowest
        }

    def _crash(self, st: State, timers_kept: int, pops_kept: int) -> State:
        """An answer whose record is lost binds no more under ``flush=async``; under ``flush=sync`` it was not given yet."""
        callers = tuple(
            caller._replace(answer="", answer_at=-1) if caller.answer and caller.answer_at >= timers_kept else caller
            for caller in st.callers
        )
        return replace(
            st,
            crashes=st.crashes - 1,
            up=False,
            timers=st.timers[:timers_kept],
            timers_durable=timers_kept,
            pops=st.pops[:pops_kept],
            pops_durable=pops_kept,
            reclaimed=st.reclaimed if self.settings.forget_synced else frozenset(),
            memory=self._fresh_memory(),
            step=DOWN,
            callers=callers,
        )

    def reopen(self, st: State) -> State:
        """Open the store: a new epoch, the sealed set and the next seq from both logs, forget, and (``seal_at_open``) a seal."""
        cursor = self._cursor(st.pops)
        st = replace(st, up=True, epoch=st.epoch + 1, reclaimed=self._forget(st, cursor), step=IDLE)
        highest_seq = max((put.seq for put in st.puts), default=0)
        if self.settings.next_seq != "log":
            highest_seq = max([highest_seq, *(seq for _, seq in cursor)])
        sealed = stairs([*cursor, *(corner for record in st.timers if isinstance(record, Sealed) for corner in record.sealed)])
        st = replace(st, memory=Memory(sealed, 0, highest_seq, highest_seq + 1))
        return self._seal(st, st.now) if self.settings.seal_at_open else st

    def _fresh_memory(self) -> Memory:
        return Memory((), 0, 0, 1)

    def _cursor(self, pops: Sequence[Delivery]) -> Corners:
        return pops[-1].cursor if pops else ()

    # ------------------------------------------------------------ judging

    def drain(self, st: State) -> None:
        """Let the store run to its end without a further crash and judge what became of every message.

        The tick in progress is finished, then the clock goes past its end and a last tick runs.

        Raises:
            Violation: a clause is broken; its steps are those of the drain.
        """
        steps: list[str] = []
        try:
            if not st.up:
                steps.append("open again")
                st = self.reopen(st)
            for now in (max(st.now, self.settings.ticks), self.settings.ticks + 1):
                if now != st.now:
                    steps.append(f"clock goes on to {now}")
                st = self._run_tick(replace(st, now=now), steps)
            self._judge(st)
        except Violation as violation:
            raise Violation(str(violation), steps) from None

    def _run_tick(self, st: State, steps: list[str]) -> State:
        for _ in range(60):
            label, st = self.tick_step(replace(st, pops_durable=len(st.pops)))
            steps.append(label)
            if st.step.at == "idle":
                return st
        raise Violation("H1: the tick does not end")

    def _judge(self, st: State) -> None:
        out = [message for delivery in st.pops for message in delivery.messages]
        for message, caller in enumerate(st.callers):
            times = out.count(message)
            if times > 1:
                raise Violation(f"H1: m{message} is in its topic {times} times")
            if st.put_of(message) is None:
                continue
            cancelled = any(isinstance(record, Cancelled) and record.message == message for record in st.timers)
            if cancelled and times:
                raise Violation(f"C1: m{message} is delivered although the record of its cancel is there")
            if not cancelled and not times:
                raise Violation(f"H1: m{message} is there and not cancelled, but never delivered; cursor {_shown(self._cursor(st.pops))}")
            if caller.answer == ALREADY_DELIVERED and not times:
                raise Violation(f"C2: m{message} was answered ALREADY_DELIVERED and is not delivered")
            if caller.answer == CANCELLED and times:
                raise Violation(f"C1: m{message} was answered CANCELLED and is delivered")

    def canonical(self, st: State) -> object:
        """Return what tells states apart: not the stamps, unless the logs are one; between ticks not what the last seal was given."""
        memory = st.memory
        if st.step.at == "idle" and self.settings.hold:
            memory = Memory(memory.sealed, 0, 0, memory.next_seq)
        timers: tuple[tuple[object, ...], ...] = st.timers
        pops: tuple[tuple[object, ...], ...] = st.pops
        if not self.settings.one_log:
            timers = tuple([record[:-1] for record in timers])
            pops = tuple([delivery[:-1] for delivery in pops])
        return (
            (st.now, st.set_backs, st.crashes, st.cancels),
            (st.up, st.epoch, memory, st.step),
            (timers, st.timers_durable, pops, st.pops_durable, st.reclaimed),
            st.callers,
        )


def _with(callers: tuple[Caller, ...], message: int, caller: Caller) -> tuple[Caller, ...]:
    return (*callers[:message], caller, *callers[message + 1 :])


def _due_by(callers: tuple[Caller, ...], until: int) -> tuple[Caller, ...]:
    return tuple(caller._replace(was_due=True) if caller.deliver and caller.deliver <= until else caller for caller in callers)


def _shown(corners: Corners) -> str:
    return "[" + " ".join(str(corner).replace(" ", "") for corner in corners) + "]"
