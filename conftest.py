"""What every test run shares: Hypothesis settings, the order of files, and leaving out tests of distributions that are not installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("rmqstore", deadline=None, print_blob=True)
settings.load_profile("rmqstore")

_ADAPTERS = ("rmqstore_lmdb", "rmqstore_memory", "rmqstore_rocksdb")
_NEEDS = {
    "benchmarks/tests": ("rmqstore_benchmarks",),
    "plugins/lmdb/tests": ("rmqstore_lmdb",),
    "plugins/memory/tests": ("rmqstore_memory",),
    "plugins/rocksdb/tests": ("rmqstore_rocksdb",),
    "plugins/wheel/tests": ("rmqstore_wheel",),
    "plugins/examples/sqlite/tests": ("rmqstore_sqlite",),
    "conformance/tests": ("rmqstore_memory",),
    "tests/test_guide.py": ("rmqstore_rocksdb", "rmqstore_lmdb"),
    "tests/transfer": ("rmqstore_rocksdb", "rmqstore_lmdb"),
    "tests/engine/test_kv.py": _ADAPTERS,
}

_LONG = (
    "tests/spark/test_spark.py",
    "tests/spark/test_streams.py",
    "tests/spark/test_sessions.py",
    "tests/test_typed_pages.py",
    "conformance/tests/test_mutants.py",
    "conformance/tests/test_runs.py",
    "tests/soak/test_soak.py",
    "tests/transfer/test_interruptions.py",
    "plugins/wheel/tests/power/test_small_wheel.py",
    "plugins/wheel/tests/power/test_builds.py",
    "tests/test_demo.py",
    "tests/test_guide.py",
)
"""Files that take half a minute or more come first, so that in the end no core is idle while another has one of them before it."""

_OF_ONE_SESSION = tuple(f"tests/spark/test_{name}.py" for name in ("spark", "streams", "tables", "cancels", "connect"))
"""Files that share a Spark session go to one worker, since each session is a JVM, which is slow until it is warm."""

collect_ignore = [path for path, packages in _NEEDS.items() if not all(map(find_spec, packages))]


def pytest_report_header() -> str | None:
    """Say what is left out."""
    return f"not installed, so left out: {', '.join(collect_ignore)}" if collect_ignore else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let long files come first, and mark them, for ``make check`` to leave them out."""
    turns = {Path(__file__).parent / path: turn for turn, path in enumerate(_LONG)}
    for item in items:
        if item.path in turns:
            item.add_marker("long")
    items.sort(key=lambda item: turns.get(item.path, len(_LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let files of one Spark session be one to ``--dist loadfile``; other ways are those of xdist."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return _OF_ONE_SESSION[0] if scope in _OF_ONE_SESSION else scope

    return Scheduling(config, log)
