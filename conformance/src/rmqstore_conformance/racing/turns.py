"""Threads that take turns: one of them runs at a time, and gives its turn on where a plan says so, or where it has to wait.

The threads call :meth:`Turns.step` wherever they could be interrupted; :mod:`.steps` does that for each line of an engine's Python. Which
thread has the turn follows from an order of precedence: the first one that can go on has it. At a *change* the thread that has the turn
goes to the end of the order. So a plan is an order and some numbers of steps, and a run of the same calls by the same plan is the same
run (Burckhardt and others, "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010).

The locks of :mod:`.locks` tell when a thread has to wait for one. Where it waits for something else, within C, the others go on after a
while without a step; it takes part again with its next step. Then a run may come out in another way the next time, and is a run that can
happen all the same.
"""

from __future__ import annotations

import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Final, NamedTuple

_allocate: Final = threading.Lock

_LOOK_S: Final = 0.1
"""So long a thread may go without a step before others have their turn."""

_PATIENCE_S: Final = 60.0


class Stuck(BaseException):
    """Threads wait for each other, or one of them for nothing; no ``except Exception`` of an engine takes it for an error of its own."""


class Step(NamedTuple):
    """A place where a thread could have been interrupted.

    Attributes:
        call: the number of the thread's call of a side of the store within which it was; -1 between such calls.
        locks: how many locks the thread had taken since that call began.
    """

    thread: int
    code: CodeType
    line: int
    call: int
    locks: int

    def __str__(self) -> str:
        module = self.code.co_filename.rsplit("/", 1)[-1]
        held = f", with {self.locks} locks" if self.locks else ""
        return f"{module}:{self.line} in {self.code.co_qualname}{held}"


class Call(NamedTuple):
    """A call of a side: whose, which, and behind how many steps of all it began."""

    thread: int
    name: str
    begin: int


class Plan(NamedTuple):
    """Who comes first, second …, and behind which steps of all the thread that has the turn goes to the end."""

    order: tuple[int, ...]
    changes: tuple[int, ...] = ()


class Seat:
    """One thread that takes turns.

    Attributes:
        locks: how many locks it holds.
        call: the number of its call of a side of the store; -1 between such calls.
        waits_for: the lock that it waits for.
    """

    def __init__(self, turns: Turns, number: int) -> None:
        self.turns = turns
        self.number = number
        self.locks = 0
        self.call = -1
        self.waits_for: object = None
        self.has_patience = True
        self.is_gone = False
        self.is_outside = False
        self.ident = 0
        self.baton = _allocate()
        self.baton.acquire()

    @property
    def can_go_on(self) -> bool:
        """Whether it could have the turn."""
        return self.waits_for is None and not self.is_gone and not self.is_outside


SEATS: Final[dict[int, Seat]] = {}
"""By thread: its seat, while it takes turns."""


class Turns:
    """One run of some threads."""

    def __init__(self, plan: Plan) -> None:
        self.steps: list[Step] = []
        self.switches: list[str] = []
        self.errors: dict[int, BaseException] = {}
        self.calls: list[Call] = []
        self._moments = itertools.count()
        self._plan = plan
        self._changes = frozenset(plan.changes)
        self._seats = [Seat(self, number) for number in range(len(plan.order))]
        self._order = [self._seats[number] for number in plan.order]
        self._now: Seat | None = None
        self._guard = _allocate()
        self._end = _allocate()
        self._stuck = ""

    def run(self, works: Sequence[Callable[[Seat], None]]) -> None:
        """Run each in a thread of its own, and return when all have ended.

        Raises:
            Stuck: they wait for each other.
        """
        self._end.acquire()
        threads = [
            threading.Thread(target=self._work, args=(seat, work), daemon=True) for seat, work in zip(self._seats, works, strict=True)
        ]
        for thread in threads:
            thread.start()
        with self._guard:
            self._give_turn()
        self._watch()
        for thread in threads:
            thread.join(_PATIENCE_S)
        if self._stuck:
            raise Stuck(self._stuck)

    def _work(self, seat: Seat, work: Callable[[Seat], None]) -> None:
        seat.ident = threading.get_ident()
        SEATS[seat.ident] = seat
        try:
            seat.baton.acquire()
            work(seat)
        except BaseException as error:
            self.errors[seat.number] = error
        finally:
            del SEATS[seat.ident]
            with self._guard:
                seat.is_gone = True
                if all(each.is_gone for each in self._seats):
                    self._end.release()
                elif self._now in (seat, None):
                    self._give_turn()

    # ------------------------------------------------------------ by the threads

    def moment(self) -> int:
        return next(self._moments)

    def begin(self, seat: Seat, code: CodeType) -> None:
        seat.call = len(self.calls)
        self.calls.append(Call(seat.number, code.co_name, len(self.steps)))

    def end(self, seat: Seat) -> None:
        seat.call = -1

    def step(self, seat: Seat, code: CodeType, line: int, locks: int) -> None:
        """Let others have their turn, if the plan says so."""
        if self._now is not seat:
            self._take_part_again(seat)
        self.steps.append(Step(seat.number, code, line, seat.call, locks))
        if len(self.steps) in self._changes:
            self._order.remove(seat)
            self._order.append(seat)
            self._switch(seat)

    def wait_for(self, seat: Seat, lock: object, take: Callable[[], bool], *, has_patience: bool) -> bool:
        """Wait until a lock was let go of, and try to take it; without patience only until no other thread could let go of it."""
        while True:
            with self._guard:
                # Once more, as a thread that takes no turns may have let go of it just now.
                if take():
                    return True
                seat.waits_for, seat.has_patience = lock, has_patience
            self._switch(seat)
            if take():
                return True
            if seat.waits_for is not None:
                seat.waits_for = None
                return False

    def let_go(self, lock: object) -> None:
        """Take down that a lock was let go of, and let the first that waited for it have the turn."""
        waiting = [seat for seat in self._seats if seat.waits_for is lock]
        if not waiting:
            return
        with self._guard:
            for seat in waiting:
                seat.waits_for = None
            now = self._now
            if now is None:
                self._give_turn()
        if now is not None and now.ident == threading.get_ident():
            self._switch(now)

    # ------------------------------------------------------------ whose turn it is

    def _switch(self, seat: Seat) -> None:
        """Give the turn to the first that can go on; return when it is this one's again."""
        with self._guard:
            chosen = self._first()
            if chosen is seat:
                return
            if seat.can_go_on or seat.waits_for is not None:
                self.switches.append(self._told(seat))
            self._give_turn()
        seat.baton.acquire()
        self._check_stuck()

    def _told(self, seat: Seat) -> str:
        last = next((step for step in reversed(self.steps) if step.thread == seat.number), None)
        how = "waits for a lock" if seat.waits_for is not None else "stops"
        return f"thread {seat.number} {how} at step {len(self.steps)}, {last}"

    def _first(self) -> Seat | None:
        able = next((seat for seat in self._order if seat.can_go_on), None)
        if able is None:
            able = next((seat for seat in self._order if seat.waits_for is not None and not seat.has_patience and not seat.is_gone), None)
        return able

    def _give_turn(self) -> None:
        """Choose who is next, with the guard held."""
        self._now = chosen = self._first()
        if chosen is not None:
            chosen.baton.release()
        elif not any(seat.is_outside for seat in self._seats) and not all(seat.is_gone for seat in self._seats):
            self._give_up("threads wait for each other's locks")

    def _take_part_again(self, seat: Seat) -> None:
        """Come back from a wait that was not noticed as one."""
        self._check_stuck()
        with self._guard:
            seat.is_outside = False
            if self._now is None:
                self._now = seat
                return
        seat.baton.acquire()
        self._check_stuck()

    # ------------------------------------------------------------ seeing to it that there is an end

    def _watch(self) -> None:
        """Wait for the end; where nothing moves, let others have their turn."""
        seen, idle_s = -1, 0.0
        while not self._end.acquire(timeout=_LOOK_S):
            if seen != len(self.steps):
                seen, idle_s = len(self.steps), 0.0
                continue
            idle_s += _LOOK_S
            with self._guard:
                now = self._now
                if now is not None and not now.is_gone and any(each.can_go_on for each in self._seats if each is not now):
                    now.is_outside = True
                    self.switches.append(f"thread {now.number} waits outside of Python")
                    self._give_turn()
                elif idle_s > _PATIENCE_S:
                    self._give_up("nothing moves")
                    return

    def _give_up(self, why: str) -> None:
        frames = sys._current_frames()
        stacks = [
            f"thread {seat.number}:\n" + "".join(traceback.format_stack(frames[seat.ident])[-12:])
            for seat in self._seats
            if seat.ident in frames and not seat.is_gone
        ]
        self._stuck = "\n".join([why, *stacks])
        for seat in self._seats:
            if seat.baton.locked():
                seat.baton.release()

    def _check_stuck(self) -> None:
        if self._stuck:
            raise Stuck(self._stuck)


def schedule_of(turns: Turns, plan: Plan) -> str:
    """Return how a run went."""
    first = f"thread {plan.order[0]} goes first"
    return "\n".join(f"    {each}" for each in (first, *turns.switches))
