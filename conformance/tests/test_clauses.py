"""Every clause of the contract has a case, or a test of this repository until it has one."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from rmqstore_conformance import cases
from rmqstore_conformance.case import clauses_in
from rmqstore_conformance.clauses import clause, clauses
from rmqstore_conformance.targets import Level

ROOT = Path(__file__).parents[2]
CASES = Path(cases.__file__).parent


@cache
def cited() -> dict[str, list[str]]:
    """Return test names by clause, read from the sources, so that a filtered run counts alike."""
    found: dict[str, list[str]] = {}
    for path in sorted([*CASES.glob("test_*.py"), *ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/*/tests/**/test_*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            for said in clauses_in(node.name.removeprefix("test_")) if path.is_relative_to(CASES) else ():
                found.setdefault(said, []).append(f"{path.name}::{node.name}")
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.clause":
                    for argument in mark.args:
                        assert isinstance(argument, ast.Constant)
                        found.setdefault(str(argument.value), []).append(f"{path.name}::{node.name}")
    return found


@pytest.mark.parametrize("name", [each.id for each in clauses().values() if each.level < Level.FULL])
def test_every_clause_has_a_test(name: str) -> None:
    assert cited().get(name)


def test_no_test_cites_a_clause_that_is_none() -> None:
    assert set(cited()) <= set(clauses())


def test_clause_tests_name_their_clause() -> None:
    """A case says in its docstring what it tries to refute."""
    silent = []
    for path in sorted(CASES.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node):
                silent.append(f"{path.name}::{node.name}")
    assert silent == []


def test_a_clause_is_read_as_the_page_says_it() -> None:
    found = clause("t6")
    assert found.title == "rolling is invisible"
    assert found.text.startswith("Where an engine moves a far timer")
    assert "apache/rocketmq#7991" in found.why
    assert found.governed_by.startswith("nothing;")
    assert len(clauses()) == 60
    assert all(each.text and each.why and each.governed_by for each in clauses().values())
