"""Small changes of a module's source that a suite must notice: the operators of mutation testing, on Python's syntax tree.

An operator names one kind of slip (a boundary that is off by one, a condition that is forgotten). It is given each place of a tree and
yields what may stand there instead. What says nothing about what a module does is no place: annotations, docstrings, imports, assertions,
messages of errors.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

import msgspec

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A node of a tree, the node above it, the statement that it is part of, and the function around it."""

    node: ast.AST
    parent: ast.AST
    statement: ast.stmt
    function: Function | None
    name: str


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one module.

    Attributes:
        number: which of the operator's changes of the module it is, in the order of the source.
        line, last_line: of the changed part of the source.
        function: the name of the function around it, with its classes; empty: it happens at import.
    """

    module: str
    operator: str
    number: int
    line: int
    last_line: int
    function: str
    before: str
    after: str

    @property
    def id(self) -> str:
        """Names it among all mutations of the same source."""
        return f"{self.module}:{self.line}:{self.operator}:{self.number}"


Operator: TypeAlias = Callable[[Place], Iterator[ast.AST]]

OPERATORS: Final[dict[str, Operator]] = {}
"""All operators by their names."""


def _operator(made: Operator) -> Operator:
    OPERATORS[made.__name__.strip("_").replace("_", " ")] = made
    return made


def _but(node: ast.AST, **fields: object) -> ast.AST:
    """Return a copy of a node with other fields."""
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _at(values: list[ast.expr], index: int, value: ast.expr) -> list[ast.expr]:
    return [*values[:index], value, *values[index + 1 :]]


def _constant(value: object) -> ast.Constant:
    return ast.Constant(value)  # type: ignore[arg-type]


# ---------------------------------------------------------------- expressions

_BOUNDARIES: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_OPPOSITES: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_LITERALS: Final = ast.Constant | ast.Tuple | ast.List | ast.Dict


def _compared_otherwise(node: ast.AST, others: dict[type[ast.cmpop], type[ast.cmpop]]) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for at, each in enumerate(node.ops):
            if other := others.get(type(each)):
                yield _but(node, ops=[*node.ops[:at], other(), *node.ops[at + 1 :]])


@_operator
def _boundary(place: Place) -> Iterator[ast.AST]:
    """``<`` and ``<=``, ``>`` and ``>=`` stand for each other."""
    return _compared_otherwise(place.node, _BOUNDARIES)


@_operator
def _comparison(place: Place) -> Iterator[ast.AST]:
    """A comparison for equality, identity or membership says the opposite."""
    return _compared_otherwise(place.node, _OPPOSITES)


@_operator
def _connective(place: Place) -> Iterator[ast.AST]:
    """``and`` and ``or`` stand for each other."""
    if isinstance(place.node, ast.BoolOp):
        yield _but(place.node, op=ast.Or() if isinstance(place.node.op, ast.And) else ast.And())


@_operator
def _operand(place: Place) -> Iterator[ast.AST]:
    """One operand of an ``and`` or an ``or`` is forgotten."""
    node = place.node
    if isinstance(node, ast.BoolOp):
        for at in range(len(node.values)):
            left = node.values[:at] + node.values[at + 1 :]
            yield left[0] if len(left) == 1 else _but(node, values=left)


@_operator
def _negation(place: Place) -> Iterator[ast.AST]:
    """A ``not`` is forgotten."""
    if isinstance(place.node, ast.UnaryOp) and isinstance(place.node.op, ast.Not):
        yield place.node.operand


@_operator
def _number(place: Place) -> Iterator[ast.AST]:
    """A whole number is one more, or one less."""
    if isinstance(place.node, ast.Constant) and type(place.node.value) is int:
        yield _constant(place.node.value + 1)
        yield _constant(place.node.value - 1)


@_operator
def _truth(place: Place) -> Iterator[ast.AST]:
    """``True`` and ``False`` stand for each other."""
    if isinstance(place.node, ast.Constant) and isinstance(place.node.value, bool):
        yield _constant(not place.node.value)


@_operator
def _arithmetic(place: Place) -> Iterator[ast.AST]:
    """An operation of arithmetic is another one; pieces of text are left as they are."""
    node = place.node
    if isinstance(node, ast.BinOp):
        sides: tuple[ast.AST, ...] = (node.left, node.right)
    elif isinstance(node, ast.AugAssign):
        sides = (node.value,)
    else:
        return
    if any(isinstance(side, ast.JoinedStr | ast.List | ast.Tuple) or _text_of(side) is not None for side in sides):
        return
    if other := _ARITHMETIC.get(type(node.op)):
        yield _but(node, op=other())


@_operator
def _extreme(place: Place) -> Iterator[ast.AST]:
    """``min`` and ``max`` stand for each other."""
    if name := _extreme_of(place.node):
        yield _but(place.node, func=ast.Name("min" if name == "max" else "max", ast.Load()))


@_operator
def _arguments(place: Place) -> Iterator[ast.AST]:
    """Two neighbouring arguments that look alike stand for each other."""
    node = place.node
    if not isinstance(node, ast.Call) or _extreme_of(node) or any(isinstance(each, ast.Starred) for each in node.args):
        return
    for at, (first, second) in enumerate(zip(node.args, node.args[1:], strict=False)):
        if type(first) is type(second) and ast.dump(first) != ast.dump(second):
            yield _but(node, args=[*node.args[:at], second, first, *node.args[at + 2 :]])


@_operator
def _slice(place: Place) -> Iterator[ast.AST]:
    """A slice begins one later, or ends one sooner."""
    node = place.node
    if isinstance(node, ast.Slice):
        if node.lower is not None:
            yield _but(node, lower=ast.BinOp(node.lower, ast.Add(), _constant(1)))
        if node.upper is not None:
            yield _but(node, upper=ast.BinOp(node.upper, ast.Sub(), _constant(1)))


@_operator
def _default(place: Place) -> Iterator[ast.AST]:
    """What ``get``, ``pop``, ``next`` or ``getattr`` gives when nothing is there is ``None``."""
    node = place.node
    if not isinstance(node, ast.Call) or len(node.args) < 2 or isinstance(node.args[-1], ast.Starred):
        return
    called = node.func
    by_name = isinstance(called, ast.Name) and (called.id, len(node.args)) in {("next", 2), ("getattr", 3)}
    by_method = isinstance(called, ast.Attribute) and called.attr in ("get", "pop") and len(node.args) == 2
    # A second argument that is worked out may be a key, as that of OrderedKV.get is.
    if (by_name or by_method) and isinstance(node.args[-1], _LITERALS) and not _is_none(node.args[-1]):
        yield _but(node, args=_at(node.args, len(node.args) - 1, _constant(None)))


@_operator
def _key(place: Place) -> Iterator[ast.AST]:
    """Bytes are other ones; so is a text by which something is looked up or compared."""
    text = _text_of(place.node)
    if not text:
        return
    if isinstance(text, bytes):
        yield _constant(bytes((text[0] ^ 1,)) + text[1:])
        return
    above = place.parent
    looked_up = isinstance(above, ast.Subscript | ast.Dict | ast.Compare)
    if looked_up or (isinstance(above, ast.Call) and isinstance(above.func, ast.Attribute) and above.func.attr == "get"):
        yield _constant(text + "~")


@_operator
def _condition(place: Place) -> Iterator[ast.AST]:
    """A condition always holds, or never."""
    node = place.node
    if isinstance(node, ast.If | ast.IfExp):
        yield _but(node, test=_constant(True))
        yield _but(node, test=_constant(False))
    elif isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
        yield _but(node, test=_constant(False))
    elif isinstance(node, ast.comprehension):
        for at in range(len(node.ifs)):
            yield _but(node, ifs=_at(node.ifs, at, _constant(True)))


# ---------------------------------------------------------------- statements

_COLLECTING: Final = {"add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "insert", "pop", "remove", "update"}


@_operator
def _call(place: Place) -> Iterator[ast.AST]:
    """A call whose answer is not used is left out."""
    if (name := _called(place.node)) is not None and name not in _COLLECTING:
        yield ast.Pass()


@_operator
def _collection(place: Place) -> Iterator[ast.AST]:
    """A collection is not changed."""
    if _called(place.node) in _COLLECTING or isinstance(place.node, ast.Delete):
        yield ast.Pass()


@_operator
def _assignment(place: Place) -> Iterator[ast.AST]:
    """An attribute or an entry is not assigned, or a name keeps its value."""
    node = place.node
    kept = isinstance(node, ast.Assign) and all(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets)
    # In a constructor the attribute would be missing: that is broken, and not wrong.
    is_first = place.function is not None and place.function.name in ("__init__", "_load")
    if isinstance(node, ast.AugAssign) or (kept and not is_first):
        yield ast.Pass()


@_operator
def _nothing(place: Place) -> Iterator[ast.AST]:
    """A function that may return ``None`` does."""
    node = place.node
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value) and _may_be_none(place.function):
        yield ast.Return(_constant(None))


@_operator
def _refusal(place: Place) -> Iterator[ast.AST]:
    """An error is not raised."""
    if isinstance(place.node, ast.Raise):
        yield ast.Pass()


@_operator
def _loop(place: Place) -> Iterator[ast.AST]:
    """``break`` and ``continue`` stand for each other."""
    if isinstance(place.node, ast.Break):
        yield ast.Continue()
    elif isinstance(place.node, ast.Continue):
        yield ast.Break()


def _text_of(node: ast.AST) -> str | bytes | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) else None


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _extreme_of(node: ast.AST) -> str | None:
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max")
    return node.func.id if named else None  # type: ignore[attr-defined]


def _called(node: ast.AST) -> str | None:
    """Return the name of what a statement calls and does nothing else with."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return None
    called = node.value.func
    return called.attr if isinstance(called, ast.Attribute) else ast.unparse(called)


def _may_be_none(function: Function | None) -> bool:
    return function is not None and function.returns is not None and any(map(_is_none, ast.walk(function.returns)))


# ---------------------------------------------------------------- places and changes

_SILENT: Final = (ast.Import, ast.ImportFrom, ast.Assert, ast.JoinedStr, ast.Global, ast.Nonlocal)
_NOT_RUN: Final = {"annotation", "returns", "decorator_list", "bases", "exc", "cause"}
_NAMES_ONLY: Final = {"__all__", "__slots__"}


def places(tree: ast.Module) -> Iterator[Place]:
    """Yield every place of a module where an operator may change something, in the order of the source."""
    for each in tree.body:
        yield from _places(each, tree, each, None, "")


def _places(node: ast.AST, parent: ast.AST, statement: ast.stmt, function: Function | None, name: str) -> Iterator[Place]:
    if isinstance(node, _SILENT) or _says_nothing(node):
        return
    if isinstance(node, ast.stmt):
        statement = node
    yield Place(node, parent, statement, function, name if function is not None else "")
    if isinstance(node, Function | ast.ClassDef):
        name = f"{name}.{node.name}".lstrip(".")
    inner = node if isinstance(node, Function) else function
    for field, value in ast.iter_fields(node):
        if field in _NOT_RUN or (isinstance(node, ast.ClassDef) and field == "keywords"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                # Defaults of arguments are worked out when the function is made.
                yield from _places(each, node, statement, function if field == "args" else inner, name)


def _says_nothing(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        return any(isinstance(each, ast.Name) and each.id in _NAMES_ONLY for each in node.targets)
    return isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation)


class _Change(NamedTuple):
    mutation: Mutation
    node: ast.AST
    replacement: ast.AST


def _changes(module: str, tree: ast.Module) -> Iterator[_Change]:
    numbers: Counter[str] = Counter()
    for place in places(tree):
        for name, operator in OPERATORS.items():
            for replacement in operator(place):
                yield _Change(_mutation(module, name, numbers[name], place, replacement), place.node, replacement)
                numbers[name] += 1


def _mutation(module: str, operator: str, number: int, place: Place, replacement: ast.AST) -> Mutation:
    node = place.node
    head = node.test if isinstance(node, ast.If | ast.While) else node
    found = head if isinstance(head, ast.expr | ast.stmt) else place.statement
    return Mutation(
        module=module,
        operator=operator,
        number=number,
        line=found.lineno,
        last_line=found.end_lineno or found.lineno,
        function=place.name,
        before=_shown(node),
        after=_shown(replacement),
    )


def _shown(node: ast.AST) -> str:
    """Return the source of a node, of a compound statement its first line."""
    return ast.unparse(node).strip().splitlines()[0]


def mutations_of(module: str, source: str) -> list[Mutation]:
    """Return every change of a module's source that an operator knows."""
    return [each.mutation for each in _changes(module, ast.parse(source))]


def mutated(mutation: Mutation, source: str) -> ast.Module:
    """Return the tree of a module with one change.

    Raises:
        LookupError: the source is not the one that the mutation was made of.
    """
    tree = ast.parse(source)
    change = next((each for each in _changes(mutation.module, tree) if each.mutation == mutation), None)
    if change is None:
        raise LookupError(f"{mutation.id}: the source has changed since")
    _Replacing(change).visit(tree)
    return ast.fix_missing_locations(tree)


class _Replacing(ast.NodeTransformer):
    def __init__(self, change: _Change) -> None:
        self._change = change

    def visit(self, node: ast.AST) -> ast.AST:
        if node is not self._change.node:
            return self.generic_visit(node)
        return ast.copy_location(self._change.replacement, node) if isinstance(node, ast.expr | ast.stmt) else self._change.replacement
