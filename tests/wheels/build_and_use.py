"""Build every distribution's wheel, install the wheels into this environment, and use them from an empty directory.

Meant for an environment of its own (tox -e wheels) that holds pip and the build backend.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "plugins/examples/sqlite"
PROJECTS = [
    ROOT,
    *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml")),
    EXAMPLE,
    ROOT / "conformance",
    ROOT / "benchmarks",
]


def main() -> None:
    """Raise at the first thing that is wrong."""
    with tempfile.TemporaryDirectory() as directory:
        wheels, empty = Path(directory, "wheels"), Path(directory, "empty")
        empty.mkdir()
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, *PROJECTS)
        built = sorted(wheels.iterdir())
        assert len(built) == len(PROJECTS), built
        for wheel in built:
            check_content(wheel)
        pip("install", *built)
        pip("install", "--no-deps", "--force-reinstall", *built)  # also when this version was installed before
        pip("check")
        subprocess.run([sys.executable, "-I", Path(__file__).with_name("use.py")], cwd=empty, check=True)
        # Without the conftest.py of this repository, which asks for more than a plug-in and the suite.
        own = ["-q", "--confcutdir", EXAMPLE, EXAMPLE / "tests"]
        subprocess.run([Path(sys.executable).with_name("pytest"), *own], cwd=ROOT, check=True)


def pip(*arguments: str | Path) -> None:
    """Run pip of this environment quietly."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def check_content(wheel: Path) -> None:
    """Check that a wheel is pure, typed, carries its licence, and holds one package and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.endswith("-py3-none-any.whl"), wheel
    (package,) = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert f"{package}/py.typed" in names, f"{wheel.name} holds no py.typed"
    assert f"{package}/__init__.py" in names, f"{wheel.name} holds no __init__.py"
    assert any(name.endswith("/licenses/LICENSE") for name in names), f"{wheel.name} holds no licence"


if __name__ == "__main__":
    main()
