"""The layers of design §3: who may import whom, and which words the framework's code may hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FRAMEWORK = sorted((ROOT / "rmqstore").rglob("*.py"))
ENGINE_PACKAGES = ("rmqstore_lmdb", "rmqstore_memory", "rmqstore_rocksdb", "rmqstore_wheel")
ENGINE_NAMES = re.compile(r"\b(rocksdb|rocksdict|lmdb|wheel)\b")
"""As engines are written in code; the names of the databases behind them may stand in a comment."""

SHAPELESS = {"utils", "util", "helpers", "helper", "misc", "common"}


@pytest.mark.skipif(find_spec("importlinter") is None, reason="import-linter is not installed")
@pytest.mark.skipif(not all(map(find_spec, ENGINE_PACKAGES)), reason="not all engines are installed")
def test_import_contracts_hold() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    environ = {**os.environ, "COLUMNS": "140", "NO_COLOR": "1"}
    run = subprocess.run([sys.executable, "-c", code, "--no-cache"], cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("path", FRAMEWORK, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_engine_is_named_in_the_framework(path: Path) -> None:
    named = [f"{path.name}:{number}: {line}" for number, line in enumerate(path.read_text().splitlines(), 1) if ENGINE_NAMES.search(line)]
    assert not named


def test_no_module_is_a_drawer() -> None:
    modules = [path for folder in ("rmqstore", "plugins", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert modules
    assert [str(path) for path in modules if path.stem in SHAPELESS or path.parent.name in SHAPELESS] == []


def test_the_framework_is_there() -> None:
    assert len(FRAMEWORK) > 10
