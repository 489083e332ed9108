"""``rmqstore inspect``: tables, JSON, exit codes, and which directories whose engine looks at."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqstore.cli import doctor
from rmqstore.plugins import Plugins
from rmqstore_conformance.stores import START_MS
from tests.cli.conftest import ENGINE, Command
from tests.test_plugins import Site, site

__all__ = ["site"]

INSPECTOR = """
from rmqstore.contract import Damage, Engine, Inspection, Moment, Section

class FakeEngine(Engine):
    def open(self, directory, options):
        raise AssertionError("inspect opens no engine")

def look(directory, now_ms=None):
    if not (directory / "acme.log").exists():
        return None
    text = (directory / "acme.log").read_text()
    rows = (("one\\x1b[1m", 1, Moment(now_ms + 60_000)), ("two", None, None))
    damage = (Damage("acme.log", 7, "it is torn"), Damage("acme.log", None, "it is short")) if "torn" in text else ()
    tables = (
        Section(heading="Files", columns=("name", "records", "due"), rows=rows, note="As of now."),
        Section(heading="Empty", note="Nothing is there."),
    )
    return Inspection(title="an acme log", sections=tables, damage=damage)
"""


@pytest.fixture
def acme(site: Site, cli: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that the inspector of engine acme knows; no other engine is there."""
    package = site.add_engines("acme-engines", "info('acme', inspector=__name__.partition('.')[0] + '.engine:look')", engine=INSPECTOR)
    assert package
    use(monkeypatch)
    path = cli.root / "foreign"
    path.mkdir()
    (path / "acme.log").write_text("fine")
    return path


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command see the distributions that there are now."""
    plugins = Plugins()
    monkeypatch.setattr(doctor, "get_plugins", lambda: plugins)


def test_tables(cli: Command, acme: Path) -> None:
    result = cli.good("inspect", str(acme))
    assert result.lines == [
        f"an acme log  ({acme}, by engine acme)",
        "",
        "Files",
        "name        records  due",
        r"one\x1b[1m        1  2023-11-14 22:14:20+00:00 (in 60 s)",
        "two               -  -",
        "As of now.",
        "",
        "Empty",
        "Nothing is there.",
    ]
    assert result.err == "No damage was found.\n"


def test_damage_ends_with_3(cli: Command, acme: Path) -> None:
    (acme / "acme.log").write_text("torn")
    result = cli("inspect", str(acme))
    assert result.code == 3
    assert result.lines[-4:] == ["Damage", "file      offset  what", "acme.log       7  it is torn", "acme.log       -  it is short"]
    assert result.err == "2 places damaged or not as expected.\n"


def test_json(cli: Command, acme: Path) -> None:
    (acme / "acme.log").write_text("torn")
    result = cli("inspect", str(acme), "--json")
    assert result.code == 3
    document = result.json
    assert (document["path"], document["now_ms"], document["is_well"], document["passed_over"]) == (str(acme), START_MS, False, [])
    (found,) = document["inspections"]
    assert (found["engine"], found["path"], found["title"]) == ("acme", str(acme), "an acme log")
    assert found["damage"] == [
        {"file": "acme.log", "offset": 7, "what": "it is torn"},
        {"file": "acme.log", "offset": None, "what": "it is short"},
    ]
    first, second = found["sections"][0]["rows"]
    assert first["due"]["ms"] == START_MS + 60_000
    assert second == {"name": "two", "records": None, "due": None}
    told = (Path(__file__).parents[2] / "docs" / "cli.md").read_text().partition("\n### rmqstore inspect\n")[2].partition("\n### ")[0]
    assert [name for name in document if name not in told] == []


def test_due_times_count_from_a_time_that_is_given(cli: Command, acme: Path) -> None:
    document = cli.good("inspect", str(acme), "--json", "--at", "5000ms").json
    assert document["now_ms"] == 5000
    assert document["inspections"][0]["sections"][0]["rows"][0]["due"]["ms"] == 65_000
    assert "is no time" in cli.bad(2, "inspect", str(acme), "--at", "soon")


def test_a_directory_that_nobody_knows(cli: Command, acme: Path) -> None:
    (acme / "acme.log").unlink()
    assert f"{acme} is empty" in cli.bad(1, "inspect", str(acme))
    (acme / "other").touch()
    assert "none of the engines that could (acme) knows its files" in cli.bad(1, "inspect", str(acme))
    assert "is a file" in cli.bad(1, "inspect", str(acme / "other"))
    assert "does not exist" in cli.bad(1, "inspect", str(acme / "none"))


def test_without_any_inspector(cli: Command, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add_engines("acme-engines", "info('acme')")
    use(monkeypatch)
    (cli.root / "x").touch()
    assert "no engine here can look at other files" in cli.bad(1, "inspect", str(cli.root))


def test_a_store_is_looked_at_engine_by_engine(cli: Command, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send()
    site.add_engines("acme-engines", f"info('{ENGINE}', inspector=__name__.partition('.')[0] + '.engine:look')", engine=INSPECTOR)
    use(monkeypatch)
    (cli.data / ENGINE / "acme.log").write_text("fine")
    with cli.owner():
        result = cli.good("inspect", "data")
    assert result.lines[0] == f"an acme log  ({cli.data / ENGINE}, by engine {ENGINE})"


def test_a_store_without_its_files_is_damaged(cli: Command, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send()
    site.add_engines("acme-engines", f"info('{ENGINE}', inspector=__name__.partition('.')[0] + '.engine:look')", engine=INSPECTOR)
    use(monkeypatch)
    document = (found := cli("inspect", "data", "--json")).json
    assert (found.code, document["is_well"], document["passed_over"]) == (3, False, [])
    assert document["inspections"][0]["damage"] == [{"file": ".", "offset": None, "what": "its files are missing"}]
    assert "its files are missing" in cli("inspect", "data").out


def test_an_engine_without_an_inspector_is_passed_over(cli: Command) -> None:
    cli.send()
    result = cli.good("inspect", "data")
    if result.out == "":
        assert f"`rmqstore doctor {cli.data} --deep`" in result.err
        assert cli.good("inspect", "data", "--json").json["passed_over"] == [ENGINE]


def test_a_broken_inspector_leaves_the_others(cli: Command, acme: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add_engines("bad-engines", "info('bad', inspector='no_such_module:look')", entry_point="bad")
    use(monkeypatch)
    result = cli.good("inspect", str(acme))
    assert result.lines[0].startswith("an acme log")
    assert "Not asked: plug-in 'bad' of bad-engines 1.0 is broken" in result.err
