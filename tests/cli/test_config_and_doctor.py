"""``rmqstore config``, ``doctor``, ``verify`` and ``inspect``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rmqstore
from rmqstore.cli import doctor
from rmqstore.plugins import Plugins
from rmqstore.settings import CORE_SETTINGS
from rmqstore.transfer import load, migrate, replacing
from rmqstore.transfer.replacing import Replacement
from rmqstore_conformance.damaging import damage_timers
from rmqstore_conformance.stores import HOUR_MS, START_MS
from tests.cli.conftest import ENGINE, Command
from tests.test_plugins import Site, site

MINUTE_MS = 60_000

pytestmark = pytest.mark.usefixtures("now")


def settings(cli: Command, *arguments: str) -> dict[str, dict[str, Any]]:
    return {each["key"]: each for each in cli.good("config", *(arguments or ("data",)), "--json").json["settings"]}


# ---------------------------------------------------------------- config


def test_settings_and_where_they_come_from(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send("--set", "precision_ms=100")
    cli.file("data/rmqstore.toml", "max_retries = 3\n[clock]\nmax_step_ms = 60000\n")
    monkeypatch.setenv("RMQSTORE_FLUSH", "async")
    found = settings(cli)
    assert set(found) >= {setting.key for setting in CORE_SETTINGS}
    assert (found["precision_ms"]["value"], found["precision_ms"]["source"]) == (100, "stored")
    assert (found["max_retries"]["value"], found["max_retries"]["place"]) == (3, str(cli.data / "rmqstore.toml"))
    assert (found["flush"]["value"], found["flush"]["place"]) == ("async", "RMQSTORE_FLUSH")
    assert (found["timer_engine"]["value"], found["init"]["source"]) == (ENGINE, "default")
    rows = [line.split(maxsplit=3) for line in cli.good("config", "data").lines]
    assert ["flush", "async", "environment", "variable RMQSTORE_FLUSH"] in rows
    assert ["clock.max_step_ms", "60000", "(1m)", str(cli.data / "rmqstore.toml")] in rows


def test_what_settings_mean(cli: Command) -> None:
    cli.send()
    text = cli.good("config", "data", "--explain").out
    for setting in CORE_SETTINGS:
        assert setting.doc in text
    assert "precision_ms = 1000 (1s)    (stored with the store)\n" in text
    assert "Takes 1000, 500, 200 or 100. Fixed when the store is made." in text


def test_a_directory_that_is_no_store_yet(cli: Command) -> None:
    document = cli.good("config", "data", "--json").json
    assert document["is_store"] is False
    assert not cli.data.exists()
    assert "one that is made there has these settings" in cli.good("config", "data").err
    cli.data.mkdir()
    cli.file("data/rmqstore.toml", "precision_ms = 200\n")
    assert settings(cli)["precision_ms"]["value"] == 200
    cli.file("data/rmqstore.toml", "flsh = 1\n")
    assert "did you mean flush?" in cli.bad(1, "config", "data")


# ---------------------------------------------------------------- doctor


def levels(cli: Command, *arguments: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for check in cli("doctor", "data", "--json", *arguments).json["checks"]:
        found.setdefault(check["check"], []).append(check["level"])
    return found


def text_of(cli: Command, name: str, *arguments: str) -> str:
    return " | ".join(check["text"] for check in cli("doctor", "data", "--json", *arguments).json["checks"] if check["check"] == name)


def test_a_store_that_is_well(cli: Command) -> None:
    cli.send()
    result = cli.good("doctor", "data")
    assert [line.split()[1] for line in result.lines] == [
        "plug-ins",
        "store",
        "lock",
        "files",
        "settings",
        "disk",
        "clock",
        "contents",
    ]
    assert {line.split()[0] for line in result.lines} == {"ok"}
    assert result.err == "All is well.\n"
    assert cli.good("doctor", "data", "--json").json["is_well"] is True
    assert "1 message in 1 topic, 0 timers, 0 leases" in text_of(cli, "contents")


def test_deep_reads_everything(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send()
    assert levels(cli, "--deep")["verify"] == ["ok"]
    monkeypatch.setattr(rmqstore.ReadStore, "verify", lambda store: ["counter of orders is 2, counted 1", "another"])
    result = cli("doctor", "data", "--deep")
    assert result.code == 3
    assert [line for line in result.lines if line.startswith("problem")] == [
        "problem  verify     counter of orders is 2, counted 1",
        "problem  verify     another",
    ]
    assert result.err == "2 problems.\n"


@pytest.mark.parametrize("is_exchanged", [False, True], ids=["built", "exchanged"])
def test_what_a_killed_load_or_migration_left_is_named(cli: Command, monkeypatch: pytest.MonkeyPatch, is_exchanged: bool) -> None:
    cli.send()
    cli.good("dump", "data", str(cli.root / "dump"))

    def cut(own: Replacement) -> None:
        if is_exchanged and own.path.exists():
            replacing.exchanged(own.staging, own.path)
        raise KeyboardInterrupt

    monkeypatch.setattr(Replacement, "publish", cut)
    with pytest.raises(KeyboardInterrupt):
        migrate(cli.data, engine=ENGINE, precision_ms=100)
    told = text_of(cli, "migration")
    whose = "what was there before" if is_exchanged else "of"
    assert f"data.migrating is {whose} a migration that runs, or was interrupted" in told
    assert ("comes to its end" in told, "remove it and data.migrating.json" in told) == (is_exchanged, not is_exchanged)
    assert levels(cli)["migration"] == ["warning"]
    cli.data.rename(cli.data.with_name("away"))
    with pytest.raises(KeyboardInterrupt):
        load(cli.root / "dump", cli.data)
    assert "data.loading is of a load that runs, or was interrupted" in text_of(cli, "load")


def test_a_holder_that_is_alive_is_named(cli: Command) -> None:
    cli.send()
    with cli.owner():
        assert text_of(cli, "lock") == f"process {os.getpid()} has the store open, and is alive"
        assert levels(cli)["contents"] == ["ok"], "it is looked at beside its owner"
    assert "nobody has the store open" in text_of(cli, "lock")


@pytest.mark.parametrize(
    ("holder", "said"),
    [
        (f"pid {os.getpid()}, started 1\n", "that process id belongs to another process by now"),
        ("pid 4194305, started 1\n", "there is no such process here"),
        ("", "does not say who"),
    ],
    ids=["another process", "no process", "nobody"],
)
def test_a_holder_that_is_not_what_it_says(cli: Command, holder: str, said: str) -> None:
    cli.send()
    with cli.owner():
        cli.file("data/LOCK", holder)
        assert said in text_of(cli, "lock")
        assert levels(cli)["lock"] == ["warning"]


def _written(name: str, text: str) -> Callable[[Command, pytest.MonkeyPatch], object]:
    return lambda cli, _: cli.file(f"data/{name}", text)


def _need(cli: Command, patch: pytest.MonkeyPatch) -> None:
    manifest = json.loads((cli.data / "rmqstore.json").read_text())
    manifest["baked"] |= {"timer_engine": "wheelie", "pop_engine": "wheelie"}
    cli.file("data/rmqstore.json", json.dumps(manifest))


def _room(free: int) -> Callable[[Command, pytest.MonkeyPatch], None]:
    def leave(cli: Command, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(doctor.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
        patch.setattr(doctor, "room_of", lambda path: (1, 10**8))

    return leave


def _lock_writes_out(cli: Command, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(doctor.os, "access", lambda path, mode: mode != os.W_OK)


def _die(cli: Command, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("RMQSTORE_MAX_RETRIES", "0")
    cli.good("pop", "data", "orders", "-g", "g", "--no-ack", "--invisible", "1s")
    cli.clock.advance(2000)
    cli.good("pop", "data", "orders", "-g", "g")


TROUBLES: dict[str, tuple[Callable[[Command, pytest.MonkeyPatch], object], str, str, str]] = {
    "no store": (lambda cli, _: cli.data.rename(cli.root / "moved"), "store", "problem", "does not exist; `rmqstore send"),
    "no manifest": (_written("rmqstore.json", "{"), "store", "problem", "cannot be read"),
    "a wrong setting": (_written("rmqstore.toml", "precision_ms = 7\n"), "settings", "problem", "precision_ms must be"),
    "no setting": (_written("rmqstore.toml", "flsh = 1\n"), "settings", "problem", "did you mean flush?"),
    "another setting": (_written("rmqstore.toml", "precision_ms = 100\n"), "settings", "problem", "was made with"),
    "an engine is missing": (_need, "plug-ins", "problem", "the store needs engine wheelie, which nothing here offers"),
    "files are missing": (lambda cli, _: (cli.data / ENGINE).rename(cli.root / "moved"), "files", "problem", "restore the store from"),
    "no room": (_room(10**6), "disk", "problem", ""),
    "little room": (_room(70 * 2**20), "disk", "warning", ""),
    "room": (_room(10**12), "disk", "ok", ""),
    "read-only": (_lock_writes_out, "disk", "warning", "mounted read-only"),
    "the clock was ahead": (lambda cli, _: cli.clock.set(cli.clock.now_ms() - HOUR_MS), "clock", "warning", "was written in 6"),
    "the clock is at its start": (lambda cli, _: cli.clock.set(0), "clock", "problem", ""),
    "dead letters": (_die, "dead", "warning", "group g gave up 1 message; `rmqstore dlq list"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_trouble_is_told(cli: Command, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    cause, check, level, said = TROUBLES[trouble]
    cli.send()
    cause(cli, monkeypatch)
    assert cli("doctor", "data").code == (3 if level == "problem" else 0)
    assert level in levels(cli)[check]
    assert said in text_of(cli, check)


def test_overdue_timers_are_counted_to_the_millisecond(cli: Command) -> None:
    for delay in ("1s", "10s", "11s"):
        cli.send("--delay", delay)
    cli.clock.advance(10_000)
    assert text_of(cli, "timers").startswith("1 timer overdue, the first by 9 s; they are delivered when")
    assert cli.good("doctor", "data").err == "1 warning.\n"
    cli.clock.advance(1)
    assert text_of(cli, "timers").startswith("2 timers overdue, the first by 9 s")
    assert levels(cli)["timers"] == ["warning"]


def test_timers_that_an_owner_is_about_to_deliver_are_no_warning(cli: Command) -> None:
    cli.send("--delay", "1s")
    with cli.owner():
        assert "timers" not in levels(cli)
        cli.clock.advance(2000)
        assert text_of(cli, "timers") == "1 timer overdue, the first by 1 s; the program that has the store open is about to deliver them"
        assert levels(cli)["timers"] == ["ok"]
        cli.clock.advance(MINUTE_MS)
        assert levels(cli)["timers"] == ["warning"], "an owner that does not deliver"


def test_parked_entries_are_told_until_they_are_dropped(cli: Command) -> None:
    cli.send("--delay", "1s", body="a body that is damaged")
    with cli.owner() as store:
        assert damage_timers(store, b"a body that is damaged") == 1
        cli.clock.advance(2000)
        store.tick()
    assert levels(cli)["parked"] == ["warning"]
    assert cli.good("dlq", "drop", "data", "--parked", "--all").out == "1 dead letter dropped\n"
    assert "parked" not in levels(cli)


@pytest.mark.parametrize(("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**34, "16 GiB"), (2**50, "1024.0 TiB")])
def test_sizes(number: int, text: str) -> None:
    assert doctor.size(number) == text


# ---------------------------------------------------------------- verify and snapshot


def test_verify(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.send()
    result = cli.good("verify", "data")
    assert (result.out, result.err) == ("", "Every record can be read, every counter is right.\n")
    assert cli.good("verify", "data", "--json").json == {"path": str(cli.data), "is_well": True, "differences": []}
    monkeypatch.setattr(rmqstore.ReadStore, "verify", lambda store: ["one"])
    wrong = cli("verify", "data")
    assert (wrong.code, wrong.out, wrong.err) == (3, "one\n", "1 difference.\n")
    assert cli("verify", "data", "--json").json["is_well"] is False


# ---------------------------------------------------------------- inspect


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
    cli.clock.set(START_MS)
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


@pytest.fixture
def own(cli: Command, site: Site, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the engine in a store, whose inspector it has now."""
    cli.send()
    site.add_engines("acme-engines", f"info('{ENGINE}', inspector=__name__.partition('.')[0] + '.engine:look')", engine=INSPECTOR)
    use(monkeypatch)
    return cli.data / ENGINE


def test_a_store_is_looked_at_engine_by_engine(cli: Command, own: Path) -> None:
    (own / "acme.log").write_text("fine")
    with cli.owner():
        assert cli.good("inspect", "data").lines[0] == f"an acme log  ({own}, by engine {ENGINE})"


def test_a_store_without_its_files_is_damaged(cli: Command, own: Path) -> None:
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
