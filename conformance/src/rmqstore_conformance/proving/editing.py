"""Faults that are one change of one method of the kit: what stands in its source, and what stands there in the fault.

Both are Python, compared as syntax trees, so how the kit's lines are broken does not matter. A method that has no such place any more is
refused when the fault is made: who changes the kit hears of it at once.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from rmqstore.contract import PopStore, TimerStore
from rmqstore_conformance.proving.planting import Pops, Timers

Edit: TypeAlias = Callable[[Callable[..., Any]], type]
"""Makes the fault of the function that has its name and says what is wrong."""


def edit(method: Callable[..., Any], before: str, after: str) -> Edit:
    """Have a method do something else at one place of its source, or at several that are alike.

    Args:
        before: an expression or a statement.
        after: what stands in its place: an expression for an expression, statements for a statement; empty: it is left out. It may
            name what the module of the method knows, and ``but``, which copies a struct.

    Raises:
        LookupError: the method has no such place.
    """
    sound = _class_of(method)
    base = Timers if issubclass(sound, TimerStore) else Pops if issubclass(sound, PopStore) else sound
    edited = _edited(method, before, after)
    return lambda made_of: type(
        made_of.__name__, (base,), {method.__name__: edited, "__doc__": made_of.__doc__, "__module__": made_of.__module__}
    )


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
    return names["made"](_class_of(method), replace)


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
