"""Small changes of a module's source that a suite must notice: the operators of mutation testing, on Python's syntax tree.

An operator names one kind of slip (a boundary that is off by one, a condition that is forgotten). It is given each place of a tree and
yields what may stand there instead. What says nothing about what a module does is no place: annotations, docstrings, imports, assertions,
messages of errors. A sample of the mutations is spread evenly over modules and operators.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

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


OPERATORS: Final = {
    "boundary": "``<`` and ``<=``, ``>`` and ``>=`` stand for each other.",
    "comparison": "A comparison for equality, identity or membership says the opposite.",
    "connective": "``and`` and ``or`` stand for each other.",
    "operand": "One operand of an ``and`` or an ``or`` is forgotten.",
    "negation": "A ``not`` is forgotten.",
    "number": "A whole number is one more, or one less.",
    "truth": "``True`` and ``False`` stand for each other.",
    "arithmetic": "An operation of arithmetic is another one; pieces of text are left as they are.",
    "extreme": "``min`` and ``max`` stand for each other.",
    "arguments": "Two neighbouring arguments that look alike stand for each other.",
    "slice": "A slice begins one later, or ends one sooner.",
    "default": "What ``get``, ``pop``, ``next`` or ``getattr`` gives when nothing is there is ``None``.",
    "key": "Bytes are other ones; so is a text by which something is looked up or compared.",
    "condition": "A condition always holds, or never.",
    "call": "A call whose answer is not used is left out.",
    "collection": "A collection is not changed.",
    "assignment": "An attribute or an entry is not assigned, or a name keeps its value.",
    "nothing": "A function that may return ``None`` does.",
    "refusal": "An error is not raised.",
    "loop": "``break`` and ``continue`` stand for each other.",
}
"""What each operator does, by its name."""

_BOUNDARIES: Final[dict[type, type]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_OPPOSITES: Final[dict[type, type]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type, type]] = {
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
_COLLECTING: Final = {"add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "insert", "pop", "remove", "update"}


def _replacements(place: Place) -> Iterator[tuple[str, ast.AST]]:
    """Yield what may stand at a place instead, with the name of the operator."""
    node = place.node
    match node:
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                for name, others in (("boundary", _BOUNDARIES), ("comparison", _OPPOSITES)):
                    if type(op) in others:
                        yield name, _but(node, ops=_at(ops, at, others[type(op)]()))
        case ast.BoolOp(op=op, values=values):
            yield "connective", _but(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for at in range(len(values)):
                left = values[:at] + values[at + 1 :]
                yield "operand", left[0] if len(left) == 1 else _but(node, values=left)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "negation", operand
        case ast.Constant(value=bool(truth)):
            yield "truth", ast.Constant(not truth)
        case ast.Constant(value=int(number)):
            yield "number", ast.Constant(number + 1)
            yield "number", ast.Constant(number - 1)
        case ast.Constant(value=bytes(data)) if data:
            yield "key", ast.Constant(bytes((data[0] ^ 1,)) + data[1:])
        case ast.Constant(value=str(text)) if text and _is_looked_up(place.parent):
            yield "key", ast.Constant(text + "~")
        case ast.BinOp(left=left_side, op=op, right=right_side):
            if type(op) in _ARITHMETIC and not _is_text(left_side) and not _is_text(right_side):
                yield "arithmetic", _but(node, op=_ARITHMETIC[type(op)]())
        case ast.AugAssign(op=op, value=value):
            if type(op) in _ARITHMETIC and not _is_text(value):
                yield "arithmetic", _but(node, op=_ARITHMETIC[type(op)]())
            yield "assignment", ast.Pass()
        case ast.Call(func=ast.Name(id="min" | "max" as extreme)):
            yield "extreme", _but(node, func=ast.Name("min" if extreme == "max" else "max", ast.Load()))
        case ast.Call(args=arguments):
            yield from _other_arguments(node, arguments)
        case ast.Slice(lower=lower, upper=upper):
            if lower is not None:
                yield "slice", _but(node, lower=ast.BinOp(lower, ast.Add(), ast.Constant(1)))
            if upper is not None:
                yield "slice", _but(node, upper=ast.BinOp(upper, ast.Sub(), ast.Constant(1)))
        case ast.If() | ast.IfExp():
            yield "condition", _but(node, test=ast.Constant(True))
            yield "condition", _but(node, test=ast.Constant(False))
        case ast.While(test=test) if not isinstance(test, ast.Constant):
            yield "condition", _but(node, test=ast.Constant(False))
        case ast.comprehension(ifs=ifs):
            for at in range(len(ifs)):
                yield "condition", _but(node, ifs=_at(ifs, at, ast.Constant(True)))
        case ast.Expr(value=ast.Call(func=called)):
            collects = isinstance(called, ast.Attribute) and called.attr in _COLLECTING
            yield "collection" if collects else "call", ast.Pass()
        case ast.Delete():
            yield "collection", ast.Pass()
        case ast.Assign(targets=targets) if all(isinstance(each, ast.Attribute | ast.Subscript) for each in targets):
            # In a constructor the attribute would be missing: that is broken, and not wrong.
            if place.function is None or place.function.name not in ("__init__", "_load"):
                yield "assignment", ast.Pass()
        case ast.Return(value=ast.expr() as value):
            if not _is_none(value) and _may_be_none(place.function):
                yield "nothing", ast.Return(ast.Constant(None))
        case ast.Raise():
            yield "refusal", ast.Pass()
        case ast.Break():
            yield "loop", ast.Continue()
        case ast.Continue():
            yield "loop", ast.Break()


def _other_arguments(call: ast.Call, arguments: list[ast.expr]) -> Iterator[tuple[str, ast.AST]]:
    if not any(isinstance(each, ast.Starred) for each in arguments):
        for at, (first, second) in enumerate(pairwise(arguments)):
            if type(first) is type(second) and ast.dump(first) != ast.dump(second):
                yield "arguments", _but(call, args=[*arguments[:at], second, first, *arguments[at + 2 :]])
    match call.func, len(arguments):
        # A second argument that is worked out may be a key, as that of OrderedKV.get is.
        case (ast.Name(id="next") | ast.Attribute(attr="get" | "pop"), 2) | (ast.Name(id="getattr"), 3):
            if isinstance(arguments[-1], _LITERALS) and not _is_none(arguments[-1]):
                yield "default", _but(call, args=[*arguments[:-1], ast.Constant(None)])


def _but(node: ast.AST, **fields: object) -> ast.AST:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _at(values: list[Any], index: int, value: ast.AST) -> list[Any]:
    return [*values[:index], value, *values[index + 1 :]]


def _is_looked_up(above: ast.AST) -> bool:
    """Say whether something is looked up or compared by a text in it."""
    is_get = isinstance(above, ast.Call) and isinstance(above.func, ast.Attribute) and above.func.attr == "get"
    return is_get or isinstance(above, ast.Subscript | ast.Dict | ast.Compare)


def _is_text(node: ast.AST) -> bool:
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return is_constant or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


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
        for name, replacement in _replacements(place):
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


# ---------------------------------------------------------------- which modules, and a sample

MEMORY: Final = ("rmqstore_memory.*",)
KIT: Final = (
    "rmqstore.engine.*",
    "rmqstore.contract.*",
    *(f"rmqstore.store.{name}" for name in ("store", "reader", "opening", "sending", "receipts", "handover", "tick", "lookup")),
    *(f"rmqstore.store.{name}" for name in ("administration", "dead_letters", "placing", "popping")),
    *(f"rmqstore.{name}" for name in ("message", "batch", "digests")),
)
"""What engines are made with, and the calls of a store above it."""


def modules_of(patterns: Iterable[str]) -> dict[str, Path]:
    """Return the source of each module whose import name fits one of some patterns (``rmqstore.engine.*``), in their order.

    Raises:
        IllegalArgumentError: no module fits a pattern.
    """
    from rmqstore.errors import IllegalArgumentError  # this module is there before what it mutates is imported

    found: dict[str, Path] = {}
    for pattern in patterns:
        root = pattern.partition(".")[0]
        spec = importlib.util.find_spec(root)
        places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
        names = {_name(file.relative_to(place.parent)): file for place in places for file in sorted(place.rglob("*.py"))}
        fitting = {name: file for name, file in names.items() if fnmatchcase(name, pattern)}
        if not fitting:
            raise IllegalArgumentError(f"no module fits {pattern!r}")
        found |= fitting
    return found


def _name(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def sample(modules: dict[str, Path], count: int, seed: int) -> list[Mutation]:
    """Return so many mutations: of each module as many as of any other, of each operator as many as there are, up to that.

    The same seed gives the same ones, and a larger count those of a smaller one first.
    """
    chance = random.Random(seed)
    left: dict[str, dict[str, list[Mutation]]] = {}
    for module, file in modules.items():
        by_operator: dict[str, list[Mutation]] = defaultdict(list)
        for each in mutations_of(module, file.read_text(encoding="utf-8")):
            by_operator[each.operator].append(each)
        for some in by_operator.values():
            chance.shuffle(some)
        if by_operator:
            left[module] = dict(by_operator)
    taken: list[Mutation] = []
    of_operator: Counter[str] = Counter()
    while left and len(taken) < count:
        for module in chance.sample(list(left), len(left)):
            operator = _rarest(left[module], of_operator, chance)
            taken.append(left[module][operator].pop())
            of_operator[operator] += 1
            if not left[module][operator]:
                del left[module][operator]
            if not left[module]:
                del left[module]
    return taken[:count]


def _rarest(operators: Iterable[str], taken: Counter[str], chance: random.Random) -> str:
    names: Sequence[str] = list(operators)
    fewest = min(taken[name] for name in names)
    return chance.choice([name for name in names if taken[name] == fewest])
