"""The layers of design §3: who may import whom and when, and which words the framework's code may hold."""

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


SINGLE_MESSAGES = """
import sys
import rmqstore
clock = rmqstore.ManualClock(0)
with rmqstore.open(sys.argv[1], engine=sys.argv[2], clock=clock, services=False) as store:
    now, later, never = (store.send(rmqstore.Message("t", b"x"), delay_ms=delay_ms) for delay_ms in (0, 1000, 2000))
    store.cancel(never.handle)
    clock.advance(1000)
    store.tick()
    assert len(popped := store.pop("t", "g")) == 2
    store.ack(popped)
print([name for name in ("numpy", "pyarrow") if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("engine", "loaded"), [("memory", "[]"), ("rocksdb", "[]"), ("lmdb", "[]"), ("wheel", "['numpy']")], ids=lambda each: each.strip("[]'")
)
def test_single_messages_need_no_columns(engine: str, loaded: str, tmp_path: Path) -> None:
    pytest.importorskip(f"rmqstore_{engine}")
    command = [sys.executable, "-c", SINGLE_MESSAGES, str(tmp_path / "store"), engine]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == loaded


def test_columns_come_with_their_first_use() -> None:
    code = "import sys, rmqstore; print('pyarrow' in sys.modules, len(rmqstore.IN_SCHEMA), 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout == "False 10 True\n"
    code = "import rmqstore; rmqstore.IN_SCHEMAS"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stderr.endswith("AttributeError: module 'rmqstore' has no attribute 'IN_SCHEMAS'\n")
