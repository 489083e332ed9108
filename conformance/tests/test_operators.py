"""Each operator of mutation testing changes what it says, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from rmqstore.errors import IllegalArgumentError
from rmqstore_conformance.proving.operators import KIT, MEMORY, OPERATORS, modules_of, mutated, mutations_of, sample

CHANGES = [
    ("boundary", "a < b", {"a <= b"}),
    ("boundary", "0 <= a < b", {"0 < a < b", "0 <= a <= b"}),
    ("boundary", "a >= b or c > d", {"a > b or c > d", "a >= b or c >= d"}),
    ("comparison", "a == b", {"a != b"}),
    ("comparison", "a is not None", {"a is None"}),
    ("comparison", "a in b", {"a not in b"}),
    ("connective", "a and b", {"a or b"}),
    ("operand", "a and b and c", {"b and c", "a and c", "a and b"}),
    ("operand", "a or b", {"a", "b"}),
    ("negation", "not a", {"a"}),
    ("number", "a + 5", {"a + 6", "a + 4"}),
    ("number", "f(True)", set()),
    ("truth", "f(True)", {"f(False)"}),
    ("arithmetic", "a + b", {"a - b"}),
    ("arithmetic", "a % b", {"a // b"}),
    ("arithmetic", "a << 1", {"a >> 1"}),
    ("arithmetic", "a += 1", {"a -= 1"}),
    ("arithmetic", "b'x' + a", set()),
    ("extreme", "min(a, b)", {"max(a, b)"}),
    ("arguments", "f(a, b, c)", {"f(b, a, c)", "f(a, c, b)"}),
    ("arguments", "f(a, b(), a)", set()),
    ("arguments", "min(a, b)", set()),
    ("slice", "a[1:b]", {"a[1 + 1:b]", "a[1:b - 1]"}),
    ("default", "a.get(b, 0)", {"a.get(b, None)"}),
    ("default", "kv.get(SPACE, PREFIX + b)", set()),
    ("default", "next(a, ())", {"next(a, None)"}),
    ("key", "a[b'xy']", {"a[b'yy']"}),
    ("key", "a['x']", {"a['x~']"}),
    ("key", "f('x')", set()),
    ("condition", "if a:\n    b()", {"if True:\n    b()", "if False:\n    b()"}),
    ("condition", "while a:\n    b()", {"while False:\n    b()"}),
    ("condition", "[a for a in b if a]", {"[a for a in b if True]"}),
    ("call", "a.sync()", {"pass"}),
    ("call", "a.append(b)", set()),
    ("collection", "a.append(b)", {"pass"}),
    ("collection", "del a[b]", {"pass"}),
    ("assignment", "a.b = c", {"pass"}),
    ("assignment", "a += c", {"pass"}),
    ("assignment", "a = c", set()),
    ("assignment", "def __init__(self):\n    self.a = 1", set()),
    ("nothing", "def f() -> int | None:\n    return 1", {"def f() -> int | None:\n    return None"}),
    ("nothing", "def f() -> int:\n    return 1", set()),
    ("refusal", "raise ValueError(f'{a < b}')", {"pass"}),
    ("loop", "for a in b:\n    break", {"for a in b:\n    continue"}),
    ("loop", "for a in b:\n    continue", {"for a in b:\n    break"}),
]


def changed(operator: str, source: str) -> Iterator[str]:
    for each in mutations_of("m", source):
        if each.operator == operator:
            yield ast.unparse(mutated(each, source))


@pytest.mark.parametrize(("operator", "source", "after"), CHANGES)
def test_an_operator_yields_its_changes(operator: str, source: str, after: set[str]) -> None:
    assert set(changed(operator, source)) == after


def test_each_operator_is_tried() -> None:
    assert {operator for operator, _, after in CHANGES if after} == set(OPERATORS)


SILENT = '''
"""1 < 2"""
from a import b
__all__ = ["a"]
A: TypeAlias = dict[str, 1]
if TYPE_CHECKING:
    B = 1
def f(a: L[0], *, b: L[1]) -> L[2]:
    """1 < 2"""
    assert a < b
    raise Error(a < b, f"{a[1:]}")
'''


def test_what_does_nothing_is_left_as_it_is() -> None:
    assert [each.operator for each in mutations_of("m", SILENT)] == ["refusal"]


def test_a_mutation_says_where_it_is() -> None:
    source = "class A:\n    def f(self):\n        if (\n            self.a\n            < 1\n        ):\n            return\n\nX = 3\n"
    boundary, number = (next(each for each in mutations_of("m", source) if each.operator == name) for name in ("boundary", "number"))
    assert (boundary.function, boundary.line, boundary.last_line) == ("A.f", 4, 5)
    at_import = [each for each in mutations_of("m", source) if each.line == 9]
    assert {each.function for each in at_import} == {""}
    assert number.id == "m:5:number:0"


def test_a_mutation_of_another_source_is_refused() -> None:
    mutation = mutations_of("m", "a < b")[0]
    with pytest.raises(LookupError, match="has changed"):
        mutated(mutation, "a == b")


def test_a_sample_is_spread_evenly_and_grows_without_changing() -> None:
    modules = modules_of([*MEMORY, "rmqstore.engine.pops.*", "rmqstore.store.handover"])
    taken = sample(modules, 80, seed=5)
    assert sample(modules, 40, seed=5) == taken[:40] != sample(modules, 40, seed=6)
    assert len({each.id for each in taken}) == 80
    counts = {module: sum(each.module == module for each in taken) for module in modules}
    there = {module: len(mutations_of(module, file.read_text(encoding="utf-8"))) for module, file in modules.items()}
    assert all(counts[module] >= min(there[module], max(counts.values()) - 1) for module in modules)
    assert len({each.operator for each in taken}) >= len(OPERATORS) - 2


def test_the_default_modules_are_those_of_memory_and_the_kit() -> None:
    found = modules_of([*MEMORY, *KIT])
    assert {"rmqstore_memory.kv", "rmqstore.engine.pops.store", "rmqstore.contract.timers", "rmqstore.store.handover"} <= found.keys()
    with pytest.raises(IllegalArgumentError, match="no module fits"):
        modules_of(["rmqstore.nowhere"])


def test_every_mutation_of_a_module_compiles() -> None:
    source = modules_of(["rmqstore.engine.pops.lease"])["rmqstore.engine.pops.lease"].read_text(encoding="utf-8")
    for each in mutations_of("m", source)[::7]:
        compile(mutated(each, source), "m", "exec")
