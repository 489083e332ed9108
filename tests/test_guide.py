"""docs/guide.md: its commands print what stands there, its Python sessions run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_guide", DOCS / "make_guide.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_commands_print_what_the_guide_shows(maker: ModuleType) -> None:
    """If this fails because the output was changed on purpose: ``python docs/make_guide.py``."""
    text = (DOCS / "guide.md").read_text(encoding="utf-8")
    assert text.count("\n$ rmqstore") > 10
    assert maker.page(text) == text


def test_the_python_sessions_run(maker: ModuleType) -> None:
    text = (DOCS / "guide.md").read_text(encoding="utf-8")
    assert text.count("\n>>> ") > 50
    assert maker.failures(text) == []


def test_a_wrong_session_is_noticed(maker: ModuleType) -> None:
    assert maker.failures("```python\n>>> 1 + 1\n3\n\n```\n")
