"""Print which tests ``make check`` runs: those of the rooms in which something changed since ``main``, or else in the last commit.

A file of ``rmqstore/ROOM`` has its tests in ``tests/ROOM``, the hand-over its model as well, one of an engine, of the suite or of the
benchmarks beside its sources. A page has ``tests/test_docs.py``, and what has no room of its own the tests at the top of ``tests``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
TOP = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/test_*.py"))


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints; none when it fails."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()


def changed() -> list[str]:
    """Return the files that changed, deleted and new ones too."""
    (base,) = git("merge-base", "main", "HEAD") or ["HEAD"]
    return git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard") or git("diff", "--name-only", "HEAD~1")


def tests_of(path: str) -> list[str]:
    """Return the tests of a file."""
    if path.endswith(".md"):
        return ["tests/test_docs.py"]
    match PurePosixPath(path).parts:
        case ["plugins", "examples", name, *_]:
            found = f"plugins/examples/{name}/tests"
        case ["plugins", name, *_]:
            found = f"plugins/{name}/tests"
        case ["conformance" | "benchmarks" as room, *_]:
            found = f"{room}/tests"
        case ["rmqstore", "store", "handover.py"]:
            return ["tests/model", *TOP]
        case ["rmqstore" | "tests", room, *_]:
            found = f"tests/{room}"
        case _:
            return TOP
    return [found] if (ROOT / found).is_dir() or found in TOP else TOP


if __name__ == "__main__":
    print(*sorted({test for path in changed() for test in tests_of(path)} or TOP))
