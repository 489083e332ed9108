"""docs/guide.md: its commands print what stands there, its Python sessions run."""

from __future__ import annotations

import doctest
import importlib.util
import re
import subprocess
import sys
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


def test_the_code_of_the_readme_and_of_the_guide_is_typed(tmp_path: Path) -> None:
    """What a reader copies passes ``mypy --strict``; ``_``, the name of what a session does not look at, is one of any type."""
    readme = re.findall(r"^```python\n(.*?)^```$", (DOCS.parent / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    sessions = re.findall(r"^```python\n(>>>.*?)^```$", (DOCS / "guide.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(sessions) > 5
    examples = [example.source for session in sessions for example in doctest.DocTestParser().get_examples(session)]
    (tmp_path / "readme.py").write_text(readme[0], encoding="utf-8")
    (tmp_path / "guide.py").write_text("_: object\n" + "".join(examples), encoding="utf-8")
    checker = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--strict"]
    pages = [str(tmp_path / name) for name in ("readme.py", "guide.py")]
    found = subprocess.run([*checker, *pages], cwd=DOCS.parent, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
