"""How a wrong engine is made: a sound one with one fault planted.

Most faults are of a common kind (:mod:`~rmqstore_conformance.proving.kinds`): one change of one method of the kit, or a call that asks or
answers something else. Others are a class with the calls that go wrong, a subclass of :class:`Timers`, of
:class:`Pops`, of a part of these (``Leasing``, say) or of :class:`Whole`; or a function that changes the options that the engine is opened
with. A *mutant* has the name that its module gives it, and says in one sentence what is wrong. It is named with the cases that must notice
it; one that is named with none was written from the contract alone, and has a proof in the tests that it is wrong.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from rmqstore.contract import (
    CancelOutcome,
    Engine,
    EngineInfo,
    EngineOptions,
    EngineSession,
    PopRequest,
    PopResult,
    PopTxn,
    PopTxnResult,
    Support,
    Ticket,
    TimerHandle,
    TimerReceipts,
)
from rmqstore.engine.kv.base import DeleteMany, PutMany, WriteBatch
from rmqstore.plugins import get_plugins

Applied: TypeAlias = tuple[PopTxnResult, Ticket]
Apply: TypeAlias = Callable[[PopTxn, int], Applied]
Popped: TypeAlias = tuple[PopResult, Ticket]
Pop: TypeAlias = Callable[[PopRequest, int], Popped]
Placed: TypeAlias = tuple[TimerReceipts, Ticket]
Put: TypeAlias = Callable[..., Placed]
Cancelled: TypeAlias = tuple[list[CancelOutcome], Ticket]
Cancel: TypeAlias = Callable[[Sequence[TimerHandle], int], Cancelled]
"""The sound calls that wrong ones make, and what they give."""

PREFIX = "mutant_"
MEMORY = "memory"
LMDB = "lmdb"

ANY_HISTORY = "T1.any_history_agrees_with_the_oracle"
CORE_HISTORY = "T1.any_history_of_core_calls_agrees_with_the_oracle"
"""Cases that notice what is wrong without having been written for it."""

Kind: TypeAlias = Literal["data", "fidelity", "durability", "two-writes", "pairs", "concurrency", "logic"]
"""What class of mistake it is."""


class _Fault:
    """What faults of a side have: something to note between calls, and a moment to plant what is deeper."""

    @property
    def noted(self) -> dict[Any, Any]:
        found: dict[Any, Any] = self.__dict__.setdefault("_noted_by_the_fault", {})
        return found

    def planted(self) -> None:
        """Plant what is deeper than the calls of the side; called whenever its state was read again."""

    def _load(self) -> None:
        super()._load()  # type: ignore[misc]
        self.planted()


if TYPE_CHECKING:
    from rmqstore.engine.pops.store import OrderedPops
    from rmqstore.engine.pops.transaction import Transaction
    from rmqstore.engine.timers.store import OrderedTimers
else:
    # A fault gets its side as a further base when it is planted.
    OrderedPops = OrderedTimers = object


class Timers(_Fault, OrderedTimers):
    """Base of faults of the timers."""


class Pops(_Fault, OrderedPops):
    """Base of faults of the pops."""


class Whole:
    """Base of faults that concern a session as a whole."""

    def open(self, engine: Engine, directory: Path, options: EngineOptions) -> EngineSession:
        return engine.open(directory, options)

    def open_for_reading(self, engine: Engine, directory: Path, options: EngineOptions) -> EngineSession:
        return engine.open_for_reading(directory, options)


class WrongEngine(msgspec.Struct, frozen=True, kw_only=True):
    """A wrong engine; called, it gives the engine.

    Attributes:
        what: what is wrong, in a sentence.
        clause: the clause that it breaks.
        base: the engine that it is but for its fault.
        caught_by: ids of cases, without what they are repeated for, each of which must fail.
        recorder: that sees what it writes.
        declares: capabilities that it declares otherwise than its base.
        name, place: by which its module holds it, and where that is; see :func:`mutants_in`.
    """

    what: str
    clause: str
    fault: Any
    kind: Kind = "logic"
    base: str = MEMORY
    caught_by: tuple[str, ...] = ()
    recorder: str = "strace"
    declares: dict[str, Support] = {}
    name: str = ""
    place: str = ""

    @property
    def engine(self) -> str:
        return PREFIX + self.name

    @property
    def info(self) -> EngineInfo:
        info = get_plugins().load_engine(self.base)[0]
        return EngineInfo(
            name=self.engine,
            capabilities=msgspec.structs.replace(info.capabilities, **self.declares),
            factory=self.place,
            requires=info.requires,
            install_hint=info.install_hint,
        )

    def __call__(self) -> Planted:
        return Planted(self.base, self.fault)


class Planted(Engine):
    """An engine with faults."""

    def __init__(self, base: str, *faults: Any) -> None:
        self._engine = get_plugins().load_engine(base)[1]
        self._faults = faults

    def open(self, directory: Path, options: EngineOptions) -> EngineSession:
        if whole := self._whole():
            return whole.open(self._engine, directory, options)
        for fault in self._faults:
            if not isinstance(fault, type):
                options = fault(options)
        session = self._engine.open(directory, options)
        for fault in self._faults:
            if isinstance(fault, type):
                plant(session, fault)
        return session

    def open_for_reading(self, directory: Path, options: EngineOptions) -> EngineSession:
        """Only a fault of a session is planted here."""
        if whole := self._whole():
            return whole.open_for_reading(self._engine, directory, options)
        return self._engine.open_for_reading(directory, options)

    def _whole(self) -> Whole | None:
        return next((fault() for fault in self._faults if isinstance(fault, type) and issubclass(fault, Whole)), None)


def plant(session: Any, fault: type) -> None:
    """Put a side that has the fault in the place of the one of a session, also once its state is read again."""
    if not issubclass(fault, _Fault):
        fault = _of_a_part(fault)
    name = "_timers" if issubclass(fault, Timers) else "_pops"
    side = getattr(session, name)
    kind: Any = type(fault.__name__, (fault, type(side)), {})
    planted = kind.__new__(kind)
    planted.__dict__ = side.__dict__
    setattr(session, name, planted)
    reloads: list[Any] = session._shared._reloads
    reloads[:] = [planted._load if each.__self__ is side else each for each in reloads]
    planted.planted()


def _of_a_part(fault: type) -> type:
    """Return the fault of the side that has a wrong part."""
    sound = next(each for each in fault.__mro__ if each.__module__.startswith("rmqstore.engine."))

    def planted(side: Any) -> None:
        for part in vars(side).values():
            if type(part) is sound:
                part.__class__ = fault

    def begin(side: Any, now_ms: int, **how: bool) -> Transaction:
        transaction: Transaction = super(Pops, side)._begin(now_ms, **how)
        if type(transaction) is sound:
            transaction.__class__ = fault
        return transaction

    side = Timers if ".timers." in sound.__module__ else Pops
    return type(fault.__name__, (side,), {"planted": planted} if side is Timers else {"planted": planted, "_begin": begin})


def mutant(
    clause: str,
    *caught_by: str,
    at: Callable[[Any], Any] = lambda fault: fault,
    kind: Kind = "logic",
    base: str = MEMORY,
    recorder: str = "strace",
    **declares: Support,
) -> Callable[..., WrongEngine]:
    """Return what makes a mutant: of a sentence and a fault, or of a fault whose docstring is the sentence.

    Args:
        at: makes the fault of a function that stands below, see :mod:`~rmqstore_conformance.proving.kinds`; the others are those of
            :class:`WrongEngine`.
    """

    def made(told: Any, fault: Any = None) -> WrongEngine:
        what = told if fault is not None else inspect.getdoc(told) or ""
        return WrongEngine(
            what=" ".join(what.split()),
            clause=clause,
            fault=at(told) if fault is None else fault,
            kind=kind,
            base=base,
            caught_by=caught_by,
            recorder=recorder,
            declares=declares,
        )

    return made


_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def mutants_in(*modules: ModuleType) -> list[WrongEngine]:
    """Return what some modules have, in their order, by the names that they give them."""
    return [
        msgspec.structs.replace(each, name=_WORDS.sub("_", name).lower(), place=f"{module.__name__}:{name}")
        for module in modules
        for name, each in vars(module).items()
        if isinstance(each, WrongEngine)
    ]


Behind: TypeAlias = Callable[[int, bytes], bool]
"""Says of a key in a space whether it belongs to the second of two writes."""


@contextmanager
def written_by(shared: Any, write: Callable[[WriteBatch], Ticket]) -> Iterator[None]:
    """Have the calls inside write in another way; call it with the lock held."""
    vars(shared)["write"] = write
    try:
        yield
    finally:
        del vars(shared)["write"]


def in_two(shared: Any, is_behind: Behind) -> AbstractContextManager[None]:
    """Make each write of the calls inside two, the first of them durable before the second; call it with the lock held."""
    whole = shared.write

    def write(batch: WriteBatch) -> Ticket:
        first, second = parted(batch, is_behind)
        if first and second:
            shared.kv.sync(whole(first).position)
            batch = second
        return whole(batch)  # type: ignore[no-any-return]

    return written_by(shared, write)


def parted(batch: WriteBatch, is_behind: Behind) -> tuple[WriteBatch, WriteBatch]:
    """Part a batch in what does not belong behind and what does, each in its order."""
    parts = WriteBatch(), WriteBatch()
    for op in batch.ops:
        if isinstance(op, PutMany):
            for item in op.items:
                parts[is_behind(op.space, item[0])].put_many(op.space, [item])
        elif isinstance(op, DeleteMany):
            for key in op.keys:
                parts[is_behind(op.space, key)].delete_many(op.space, [key])
        else:
            parts[is_behind(op.space, op.start)].delete_range(op.space, op.start, op.stop)
    return parts
