"""``rmqstore new-engine``: a plug-in project to start from, which works: the template engine ``memory`` under another name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from rmqstore.cli import show
from rmqstore.cli.options import examples
from rmqstore.errors import IllegalArgumentError, StorePathError
from rmqstore.plugins import get_plugins

_TEMPLATE: Final = "memory"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")

_PROJECT: Final = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "rmqstore-{dashed}"
version = "0.1.0"
description = "The {name} engine of rmqstore"
requires-python = ">=3.11"
dependencies = ["rmqstore>=0.1.0,<0.2"]

[project.optional-dependencies]
test = ["rmqstore-conformance"]

[project.entry-points.rmqstore]
{name} = "rmqstore_{name}.plugin"

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
rmqstore_{name} = ["py.typed"]
"""

_README: Final = """\
# rmqstore-{dashed}

The `{name}` engine of rmqstore. It starts as the engine `memory` under another name: it works, and keeps nothing on the disk.

```
pip install -e '.[test]'
rmqstore conformance {name}
```

1. `src/rmqstore_{name}/kv.py`: put your database in place of the sorted map.
2. `src/rmqstore_{name}/engine.py`: open it in the directory that you are given.
3. `src/rmqstore_{name}/plugin.py`: declare what it survives and what it can do.
4. `rmqstore conformance {name} --level extended --report report.html` until every clause holds.
"""

_TEST: Final = '''\
"""The engine keeps what it declares, by the conformance suite."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path


def test_every_core_clause_holds(tmp_path: Path) -> None:
    run = subprocess.run(["rmqstore", "conformance", "{name}", "--report", "report.json"], cwd=tmp_path, check=False)
    (report,) = json.loads((tmp_path / "report.json").read_text())["reports"]
    assert (run.returncode, report["reached"]) == (0, "core"), report["headline"]
'''


@examples("rmqstore new-engine acme", "rmqstore new-engine work/acme --name acme")
def new_engine(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the project; it must not be there yet.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the engine (default: that of the directory).")] = None,
) -> None:
    """Write a plug-in project for an engine of your own.

    The engine is a copy of the template engine, wired to the conformance suite.
    """
    engine = name or directory.name
    if not _NAME.fullmatch(engine):
        raise IllegalArgumentError(
            f"an engine's name has small letters, digits and _, and begins with a letter; not {engine!r}: give --name"
        )
    if any(entry.name == engine for entry in get_plugins().engines()):
        raise IllegalArgumentError(f"there is an engine {engine!r} already; choose another --name")
    if directory.exists():
        raise StorePathError(f"{directory} is there already; name a directory that is not")
    for path, text in _files(engine).items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text, encoding="utf-8")
        show.line(str(directory / path))
    show.note(f"next: pip install -e '{directory}[test]' && rmqstore conformance {engine}")


def _files(engine: str) -> dict[str, str]:
    names = {"name": engine, "dashed": engine.replace("_", "-")}
    texts = {"pyproject.toml": _PROJECT, "README.md": _README, "tests/test_conformance.py": _TEST}
    files = {path: text.format(**names) for path, text in texts.items()}
    package = Path(importlib.import_module(type(get_plugins().load_engine(_TEMPLATE)[1]).__module__).__file__ or "").parent
    for path in sorted([*package.glob("*.py"), package / "py.typed"]):
        files[f"src/rmqstore_{engine}/{path.name}"] = _renamed(path.read_text(encoding="utf-8"), engine)
    return files


def _renamed(text: str, engine: str) -> str:
    """Return a module of the template with names of the new engine; the word in prose stays."""
    title = engine.title().replace("_", "")
    text = re.sub(rf"\brmqstore_{_TEMPLATE}\b", f"rmqstore_{engine}", text)
    text = re.sub(rf"\brmqstore-{_TEMPLATE}\b", f"rmqstore-{engine.replace('_', '-')}", text)
    text = re.sub(rf"{_TEMPLATE.title()}(Engine|KV)\b", rf"{title}\1", text)
    text = re.sub(rf'"{_TEMPLATE}"', f'"{engine}"', text)
    text = re.sub(rf"'{_TEMPLATE}'", f"'{engine}'", text)
    return re.sub(rf"^(\s*){_TEMPLATE} =", rf"\1{engine} =", text, flags=re.MULTILINE)
