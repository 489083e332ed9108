"""Every clause of design §5.4 has a test that names it with ``@pytest.mark.clause``."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CLAUSES = (
    [f"T{n}" for n in (1, 2, 3, 4, 5, 8, 9, 10, 11, 12)]
    + [f"C{n}" for n in range(1, 7)]
    + [f"H{n}" for n in range(1, 5)]
    + [f"P{n}" for n in range(1, 15)]
    + ["Q1", "Q2", "Q3"]
    + ["R1", "R4", "R5", "R6", "F3", "X1", "X3", "K1", "K2", "S1", "I1"]
)
"""What the key-ordered engines declare and what needs no other process; T6 and T7 hold trivially there, since nothing rolls."""

ALL = {*CLAUSES, "T6", "T7", "R2", "R3", "F1", "F2", "X2", "X4"}


@cache
def cited() -> dict[str, list[str]]:
    """Return test names by clause, read from the sources, so that a filtered run counts alike."""
    found: dict[str, list[str]] = {}
    for path in sorted(HERE.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.clause":
                    for argument in mark.args:
                        assert isinstance(argument, ast.Constant)
                        found.setdefault(str(argument.value), []).append(f"{path.name}::{node.name}")
    return found


@pytest.mark.parametrize("clause", CLAUSES)
def test_every_clause_has_a_test(clause: str) -> None:
    assert cited().get(clause)


def test_no_test_cites_a_clause_that_is_none() -> None:
    assert set(cited()) <= ALL


def test_clause_tests_name_their_clause() -> None:
    """A test in ``clauses/`` says in its docstring what it tries to refute."""
    silent = []
    for path in sorted((HERE / "clauses").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node):
                silent.append(f"{path.name}::{node.name}")
    assert silent == []
