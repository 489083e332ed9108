"""Common kinds of faults: one place of the kit's source is another one, what is asked or answered is changed, or one write is made two.

A kind makes the class of a fault of a function: of the one below the decorator that makes a wrong engine, or of one that it is called with.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from rmqstore import MessageBatch
from rmqstore.batch import columns_of
from rmqstore.contract import (
    Engine,
    EngineOptions,
    EngineSession,
    PoppedBatch,
    PopResult,
    PopStore,
    PopTxn,
    Receipt,
    Ticket,
    TimerStore,
)
from rmqstore.contract.state import StatePage
from rmqstore.message import Message, PoppedMessage
from rmqstore_conformance.proving.planting import Pops, Timers, Whole, in_two

_Call: TypeAlias = Callable[..., Any]
_Change: TypeAlias = Callable[[Any], Any]
Maker: TypeAlias = Callable[[Callable[..., Any]], type]
but = msgspec.structs.replace


def _fault(side: type, made_of: Callable[..., Any], call: str, faulty: Callable[..., Any]) -> type:
    def called(self: Any, *args: Any, **options: Any) -> Any:
        return faulty(self, getattr(super(fault, self), call), *args, **options)

    fault = type(made_of.__name__, (side,), {call: called, "__module__": made_of.__module__})
    return fault


def instead(side: type, call: str) -> Maker:
    """Do something else in place of a call; it is given the side, the sound call and what that is given."""
    return lambda faulty: _fault(side, faulty, call, faulty)


def by_the_latest_clock(side: type, call: str) -> type:
    """Make a call with the latest time that it was ever told."""

    def faulty(self: Any, sound: _Call, now_ms: int, *more: Any) -> Any:
        self.noted["latest"] = max(now_ms, self.noted.get("latest", 0))
        return sound(self.noted["latest"], *more)

    return _fault(side, faulty, call, faulty)


def _kind(faulty: _Call) -> Callable[[type, str], Maker]:
    """Make a kind of what is done in place of a call: it is given the function of the fault, then what :func:`instead` gives."""
    return lambda side, call: lambda given: _fault(side, given, call, partial(faulty, given))


@_kind
def asks(change: _Change, self: Any, sound: _Call, asked: Any, *more: Any, **options: Any) -> Any:
    """Change what a call is asked: its first argument."""
    return sound(change(asked), *more, **options)


@_kind
def answers(change: _Change, self: Any, sound: _Call, *args: Any, **options: Any) -> Any:
    """Change what a call answers, beside its ticket."""
    answer = sound(*args, **options)
    return (change(answer[0]), *answer[1:]) if isinstance(answer, tuple) else change(answer)


@_kind
def at_once(when: Callable[[Any, Any], bool], self: Any, sound: _Call, asked: Any, *args: Any, **options: Any) -> Any:
    """Answer with a ticket that nobody has to wait for, where that is so by what was asked and what is answered."""
    result, ticket = sound(asked, *args, **options)
    return result, Ticket(0) if when(asked, result) else ticket


@_kind
def two_writes(is_behind: Callable[[int, bytes], bool], self: Any, sound: _Call, *args: Any, **options: Any) -> Any:
    """Make the write of a call two, the first of them durable before the second, to which belong the keys of some spaces."""
    with self._lock, in_two(self._shared, is_behind):
        return sound(*args, **options)


def exports(side: type, table: str) -> Maker:
    """Change the rows of one table of the exported state."""

    def export_state(change: _Change, self: Any, sound: Callable[..., StatePage], asked: str, *more: Any) -> StatePage:
        page = sound(asked, *more)
        return but(page, rows=change(page.rows)) if asked == table else page

    return _kind(export_state)(side, "export_state")


@_kind
def _by_key(fits: Callable[[str, str, str, str], bool], self: Any, _: _Call, topic: str, keys: Sequence[str], now_ms: int) -> Any:
    outcomes, ticket = [], Ticket(0)
    for key in keys:
        timers = self.scan(0, 2**62, limit=100_000).timers
        found = [each.handle for each in timers if any(fits(topic, key, each.message.topic, other) for other in each.message.keys)]
        done, ticket = self.cancel(sorted(found, key=lambda handle: handle.seq), now_ms)
        outcomes.append(done)
    return outcomes, ticket


cancels_by_key: Final = _by_key(Timers, "cancel_keys")
"""Let a cancel by key take the timers that fit: it is given the topic and the key of the cancel, and then those of a timer."""


# ---------------------------------------------------------------- changes of the kit's source


def edit(method: Callable[..., Any], before: str, after: str) -> type:
    """Have a method of the kit do something else at one place of its source, or at several that are alike.

    The sources are compared as syntax trees, so how the kit's lines are broken does not matter. A method that has no such place any more
    is refused when the fault is made: who changes the kit hears of it at once.

    Args:
        before: an expression or a statement.
        after: what stands in its place: an expression for an expression, statements for a statement; empty: it is left out. It may
            name what the module of the method knows, and ``but``, which copies a struct; ``BEFORE`` stands for ``before``.

    Raises:
        LookupError: the method has no such place.
    """
    sound = _class_of(method)
    base = Timers if issubclass(sound, TimerStore) else Pops if issubclass(sound, PopStore) else sound
    return type(f"Other{sound.__name__}", (base,), {method.__name__: _edited(method, before, after.replace("BEFORE", before))})


def _class_of(method: Callable[..., Any]) -> type:
    found: Any = sys.modules[method.__module__]
    for name in method.__qualname__.split(".")[:-1]:
        found = getattr(found, name)
    return found  # type: ignore[no-any-return]


def _edited(method: Callable[..., Any], before: str, after: str) -> Any:
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    replacing = _Replacing(before, after)
    replacing.visit(tree)
    if not replacing.found:
        raise LookupError(f"{method.__module__}.{method.__qualname__} has no {before!r} any more, which a wrong engine changes")
    # What calls ``super()`` finds the class of the method by this name.
    made = ast.parse(f"def made(__class__, but):\n    return {method.__name__}")
    function = made.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body[:0] = tree.body
    file = inspect.getsourcefile(method) or "?"
    code = compile(ast.fix_missing_locations(made), file, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    names: dict[str, Any] = {}
    exec(code, vars(sys.modules[method.__module__]), names)  # noqa: S102 - the kit's own source
    return names["made"](_class_of(method), but)


class _Replacing(ast.NodeTransformer):
    """Puts something in the place of each node that is like another one."""

    def __init__(self, before: str, after: str) -> None:
        (wanted,) = ast.parse(before).body
        self._wanted: ast.AST = wanted
        self._after: ast.expr | list[ast.stmt] = ast.parse(after).body or [ast.Pass()]
        if isinstance(wanted, ast.Expr):
            self._wanted = wanted.value
            self._after = ast.parse(after or "None", mode="eval").body
        self._dump = ast.dump(self._wanted)
        self.found = 0

    def visit(self, node: ast.AST) -> Any:
        if type(node) is not type(self._wanted) or ast.dump(node) != self._dump:
            return self.generic_visit(node)
        self.found += 1
        return self._after


# ---------------------------------------------------------------- sessions

Opened: TypeAlias = Callable[[Any], object]
"""What is done to a session that was opened."""

Sync: TypeAlias = Callable[[Callable[..., None], Ticket | None], None]
"""A sync by a sound one."""


def opens(fault: Callable[[Path], Opened]) -> type:
    """Call something with the directory before it is opened; it returns what is done to the session."""

    class Changed(Whole):
        def open(self, engine: Engine, directory: Path, options: EngineOptions) -> EngineSession:
            change = fault(directory)
            session = engine.open(directory, options)
            change(session)
            return session

    return Changed


def syncs(fault: Callable[[Path], Sync]) -> type:
    """Let both sides of a session sync in another way, which something makes of the directory once it is opened."""
    return opens(lambda directory: lambda session: synced_by(session, fault(directory)))


def synced_by(session: Any, sync: Sync) -> None:
    """Let both sides of a session sync in another way."""
    for side in session.timers(), session.pops():
        side.sync = lambda ticket=None, sound=side.sync: sync(sound, ticket)


# ---------------------------------------------------------------- batches and popped messages


def column_set(columns: pa.RecordBatch, name: str, values: Sequence[Any]) -> pa.RecordBatch:
    """Return columns with other values in one of them."""
    at = columns.schema.get_field_index(name)
    return columns.set_column(at, columns.schema.field(at), pa.array(values, columns.schema.field(at).type))


def with_column(batch: MessageBatch, name: str, values: Sequence[Any]) -> MessageBatch:
    """Return a batch with other values in one column."""
    return MessageBatch(columns=column_set(batch.columns, name, values))


def of_rows(batch: MessageBatch, rows: Sequence[int]) -> MessageBatch:
    """Return some rows of a batch, in this order."""
    return MessageBatch(columns=batch.columns.take(pa.array(rows, pa.int64())))


def values_of(batch: MessageBatch, name: str) -> list[Any]:
    """Return one column."""
    found: list[Any] = batch.columns.column(name).to_pylist()
    return found


def with_rows(batch: MessageBatch, change: Callable[[Message], Message]) -> MessageBatch:
    """Return a batch with each message changed; the same batch when that changes none."""
    before = [each for each in batch.messages if isinstance(each, Message)]
    after = [change(each) for each in before]
    return batch if after == before else MessageBatch(messages=after)


class _Edited(PoppedBatch):
    """Popped messages, each changed on its way out, or one of their columns alone."""

    def __init__(self, popped: PoppedBatch, edit: Callable[[PoppedMessage], PoppedMessage], column: str, values: _Change) -> None:
        self._popped = popped
        self._edit = edit
        self._column = column, values

    def __len__(self) -> int:
        return len(self._popped)

    def messages(self) -> list[PoppedMessage]:
        return [self._edit(each) for each in self._popped.messages()]

    def columns(self) -> MessageBatch:
        batch = MessageBatch(columns=columns_of(self.messages()))
        name, values = self._column
        return with_column(batch, name, values(values_of(batch, name))) if name else batch

    def receipts(self) -> Sequence[Receipt]:
        return self._popped.receipts()


def _same(value: Any) -> Any:
    return value


def edited(
    result: PopResult, edit: Callable[[PoppedMessage], PoppedMessage] = _same, column: str = "", values: _Change = _same
) -> PopResult:
    """Return the answer to a pop with its messages changed, in both forms, or with other values in a column."""
    return but(result, messages=_Edited(result.messages, edit, column, values))


def _of_appends(change: Callable[[MessageBatch], MessageBatch]) -> Callable[[PopTxn], PopTxn]:
    """Change what is sent for now, and not what a hand-over brings."""
    return lambda txn: txn if txn.appends is None or txn.timer_cursor is not None else but(txn, appends=change(txn.appends))


@_kind
def _times(
    change: Callable[[int | None, int], int | None], self: Any, put: _Call, batch: MessageBatch, now_ms: int, marks: Sequence[bytes] = ()
) -> Any:
    delivers = [change(at, now_ms) for at in values_of(batch, "deliver_at_ms")]
    return put(with_column(batch, "deliver_at_ms", delivers), now_ms, marks)


times_put: Final = _times(Timers, "put")
"""Change the deliver times that are put, by the time of the call."""


def _rows(kind: Maker, of_rows: Callable[[_Change], _Change]) -> Maker:
    return lambda change: kind(of_rows(change))


ROWS_PUT: Final = _rows(asks(Timers, "put"), lambda change: lambda batch: with_rows(batch, change))
ROWS_SENT: Final = _rows(asks(Pops, "apply"), lambda change: _of_appends(lambda batch: with_rows(batch, change)))
SENT: Final = _rows(asks(Pops, "apply"), _of_appends)
ROWS_DUE: Final = _rows(answers(Timers, "due"), lambda change: lambda due: but(due, messages=with_rows(due.messages, change)))
ROWS_POPPED: Final = _rows(answers(Pops, "pop"), lambda change: lambda result: edited(result, change))
