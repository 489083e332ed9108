"""How much source an engine is made of: lines with code on them, docstrings and comments left out."""

from __future__ import annotations

import ast
import functools
import importlib.util
import tokenize
from pathlib import Path


@functools.cache
def package_lines(*packages: str) -> int | None:
    """Return the lines of code of packages together; None when one is not installed. Nothing is imported but their parents."""
    total = 0
    for package in packages:
        try:
            found = importlib.util.find_spec(package)
        except ImportError:
            return None
        if found is None or not found.submodule_search_locations:
            return None
        for place in found.submodule_search_locations:
            total += sum(code_lines(file) for file in sorted(Path(place).rglob("*.py")))
    return total


def code_lines(file: Path) -> int:
    """Return the lines of one module."""
    with tokenize.open(file) as stream:
        text = stream.read()
    rows = enumerate(text.splitlines(), start=1)
    lines = {number for number, row in rows if row.strip() and not row.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or node.body[0].lineno) + 1))
    return len(lines)
