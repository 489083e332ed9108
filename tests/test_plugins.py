"""Discovery of plug-ins and engines, on fake distributions with real dist-info metadata (design §5.7)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from rmqstore.contract import API_VERSION, Engine
from rmqstore.errors import (
    BrokenEngineError,
    DuplicateEngineError,
    EngineLookupError,
    EngineNotInstalledError,
    RmqstoreError,
    UnknownEngineError,
)
from rmqstore.plugins import STRICT_VARIABLE, BrokenPluginWarning, EngineState, PluginHookWarning, Plugins

PLUGIN = """
from rmqstore.contract import Durability, EngineInfo, Setting, same_durability, Capabilities
from rmqstore.hookspecs import hookimpl

DURABLE = Capabilities(durability=same_durability(sync=Durability.POWER_LOSS, asynchronous=Durability.PROCESS_CRASH))
VOLATILE = Capabilities(durability=same_durability(sync=Durability.NONE, asynchronous=Durability.NONE))

def info(name, **options):
    options.setdefault("capabilities", DURABLE)
    options.setdefault("factory", __name__.partition(".")[0] + ".engine:FakeEngine")
    return EngineInfo(name=name, **options)
"""

ENGINE = """
from rmqstore.contract import Engine

class FakeEngine(Engine):
    def open(self, directory, options):
        raise AssertionError("no test opens it")
"""


class Site:
    """A directory of fake distributions; each has a package of its own name, unlike any imported before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.packages: list[str] = []

    def add(self, distribution: str, body: str, *, version: str = "1.0", entry_point: str = "acme", engine: str = ENGINE) -> str:
        """Write a distribution whose plug-in module is ``body`` behind the common head; return the package's name."""
        package = f"fake_{uuid.uuid4().hex}"
        (self.path / package).mkdir()
        (self.path / package / "__init__.py").touch()
        (self.path / package / "plugin.py").write_text(PLUGIN + textwrap.dedent(body))
        (self.path / package / "engine.py").write_text(textwrap.dedent(engine))
        self.add_metadata(distribution, f"[rmqstore]\n{entry_point} = {package}.plugin\n", version=version)
        self.packages.append(package)
        return package

    def add_engines(self, distribution: str, *infos: str, **options: str) -> str:
        """Write a distribution that offers the engines which the expressions ``infos`` give."""
        return self.add(distribution, f"@hookimpl\ndef rmqstore_engines():\n    return [{', '.join(infos)}]\n", **options)

    def add_metadata(self, distribution: str, entry_points: str, *, version: str = "1.0") -> None:
        info = self.path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The only distributions that discovery sees."""
    real = metadata.distributions
    monkeypatch.setattr(metadata, "distributions", lambda: real(path=[str(tmp_path)]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(STRICT_VARIABLE, raising=False)
    site = Site(tmp_path)
    yield site
    for name in [name for name in sys.modules if name.partition(".")[0] in site.packages]:
        del sys.modules[name]


def states(plugins: Plugins) -> dict[str, EngineState]:
    return {entry.name: entry.state for entry in plugins.engines()}


def test_an_engine_is_listed_with_its_distribution_and_loaded_on_demand(site: Site) -> None:
    package = site.add_engines("acme-engines", "info('acme')", version="2.3")
    plugins = Plugins()
    (entry,) = plugins.engines()
    assert (entry.name, entry.distribution, entry.version, entry.state, entry.reason) == ("acme", "acme-engines", "2.3", EngineState.OK, "")
    assert f"{package}.engine" not in sys.modules, "listing must not import the engine itself"
    info, engine = plugins.load_engine("acme")
    assert info == entry.info
    assert isinstance(engine, Engine)
    assert f"{package}.engine" in sys.modules


def test_without_any_plugin_nothing_is_known(site: Site) -> None:
    plugins = Plugins()
    assert plugins.engines() == []
    with pytest.raises(UnknownEngineError, match="no engine is called 'acme'; known engines: none"):
        plugins.load_engine("acme")
    with pytest.raises(EngineNotInstalledError, match="no engine was found at all"):
        plugins.default_engine()


def test_an_unknown_engine_names_the_nearest_and_all(site: Site) -> None:
    site.add_engines("acme-engines", "info('acme')", "info('zeta')")
    with pytest.raises(UnknownEngineError) as caught:
        Plugins().load_engine("acmee")
    assert str(caught.value) == "no engine is called 'acmee'; did you mean 'acme'?; known engines: acme, zeta"
    assert isinstance(caught.value, LookupError)
    assert isinstance(caught.value, RmqstoreError)


def test_an_inspector_is_loaded_on_demand(site: Site) -> None:
    engine = ENGINE + "\ndef look(directory, now_ms=None):\n    return None\n\nnumber = 5\n"
    place = "inspector=__name__.partition('.')[0] + '.engine:"
    package = site.add_engines("acme-engines", f"info('acme', {place}look')", f"info('odd', {place}number')", "info('mute')", engine=engine)
    plugins = Plugins()
    assert plugins.load_inspector("mute") is None
    assert f"{package}.engine" not in sys.modules
    inspector = plugins.load_inspector("acme")
    assert inspector is not None
    assert inspector(site.path) is None
    with pytest.raises(BrokenEngineError, match="is no callable but 5"):
        plugins.load_inspector("odd")
    with pytest.raises(UnknownEngineError):
        plugins.load_inspector("none")


def test_an_inspector_needs_what_its_engine_needs(site: Site) -> None:
    site.add_engines("acme-engines", "info('acme', inspector='x:y', requires=('no_such_module',))")
    with pytest.raises(EngineNotInstalledError, match="needs no_such_module"):
        Plugins().load_inspector("acme")


# ---------------------------------------------------------------- broken plug-ins


BROKEN = {
    "its import fails": ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    "its import exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "its hook fails": ("@hookimpl\ndef rmqstore_engines():\n    return 1 // 0", "ZeroDivisionError"),
    "it implements an unknown hook": ("@hookimpl\ndef rmqstore_no_such_hook(): pass", "unknown hook 'rmqstore_no_such_hook'"),
    "its hook takes an unknown argument": ("@hookimpl\ndef rmqstore_engines(bogus): return []", "bogus"),
    "it returns something else": ("@hookimpl\ndef rmqstore_engines(): return ['acme']", "must return EngineInfo objects, not str"),
    "it returns no list": ("@hookimpl\ndef rmqstore_engines(): return 5", "TypeError"),
    "it speaks another contract": (
        f"@hookimpl\ndef rmqstore_engines(): return [info('acme', api_version={API_VERSION + 1})]",
        f"version {API_VERSION + 1} of the engine contract and this rmqstore has version {API_VERSION}",
    ),
    "its name is taken by a setting": ("@hookimpl\ndef rmqstore_engines(): return [info('clock')]", "cannot be an engine's name"),
    "its name cannot be written": ("@hookimpl\ndef rmqstore_engines(): return [info('Ac-me')]", "cannot be an engine's name"),
    "its name is no text": ("@hookimpl\ndef rmqstore_engines(): return [info(5)]", "TypeError"),
    "its durability is no table": (
        "@hookimpl\ndef rmqstore_engines(): return [info('acme', capabilities=Capabilities(durability=5))]",
        "AttributeError",
    ),
    "its capabilities are none": ("@hookimpl\ndef rmqstore_engines(): return [info('acme', capabilities={})]", "must be Capabilities"),
    "its durability has holes": (
        "@hookimpl\ndef rmqstore_engines(): return [info('acme', capabilities=Capabilities(durability={}))]",
        "does not declare the durability of ack, append, cancel",
    ),
    "its setting has no prefix": (
        "@hookimpl\ndef rmqstore_engines(): return [info('acme', settings=(Setting('size', int, 1, ''),))]",
        "declares the setting 'size'",
    ),
    "its setting's default is not allowed": (
        "@hookimpl\ndef rmqstore_engines(): return [info('acme', settings=(Setting('acme.size', int, 0, '', minimum=1),))]",
        "acme.size must be a whole number of at least 1, not 0",
    ),
}


@pytest.mark.parametrize(("body", "cause"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_warned_about_once_and_raised_when_asked_for(
    site: Site, monkeypatch: pytest.MonkeyPatch, body: str, cause: str
) -> None:
    site.add("bad-engines", body, version="0.7")
    site.add_engines("good-engines", "info('good')", entry_point="good")
    with pytest.warns(BrokenPluginWarning, match=r"of bad-engines 0\.7 is broken") as caught:
        plugins = Plugins()
    assert len(caught) == 1
    (broken,) = plugins.broken
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert states(plugins) == {broken.name: EngineState.BROKEN, "good": EngineState.OK}
        plugins.load_engine("good")
        with pytest.raises(BrokenEngineError) as raised:
            plugins.load_engine(broken.name)
    assert cause in str(raised.value)
    assert "bad-engines 0.7" in str(raised.value)
    assert "pip uninstall bad-engines" in str(raised.value)
    assert raised.value.__cause__ is broken.error
    monkeypatch.setenv(STRICT_VARIABLE, "1")
    with pytest.raises(BrokenEngineError, match="bad-engines"):
        Plugins()


@pytest.mark.parametrize("entry_point", ["no equals sign here", "acme = no_such_package.plugin", "acme = !!"])
def test_what_is_broken_leaves_the_others(site: Site, entry_point: str) -> None:
    """Damaged metadata, or one engine of several in a plug-in."""
    site.add_metadata("bad-engines", f"[rmqstore]\n{entry_point}\n")
    site.add_engines("good-engines", "info('old', api_version=0)", "info('good')", entry_point="good")
    with pytest.warns(BrokenPluginWarning) as caught:
        plugins = Plugins()
    assert sorted("bad-engines" in str(each.message) for each in caught) == [False, True]
    assert states(plugins).pop("good") is EngineState.OK
    assert len(plugins.broken) == 2


def test_entry_points_of_other_groups_are_left_alone(site: Site) -> None:
    site.add_metadata("unrelated", "[console_scripts]\nacme = no_such_package:main\n")
    assert Plugins().engines() == []


@pytest.mark.parametrize(
    "engine",
    ["import no_such_module_at_all", "class FakeEngine: pass", "", "def FakeEngine():\n    raise RuntimeError('no luck')"],
    ids=["import", "no Engine", "no factory", "factory fails"],
)
def test_an_engine_that_does_not_load_is_broken(site: Site, engine: str) -> None:
    site.add_engines("acme-engines", "info('acme')", engine=engine)
    plugins = Plugins()
    with pytest.raises(BrokenEngineError, match=r"'acme' of acme-engines 1\.0 is broken: .*pip uninstall acme-engines") as caught:
        plugins.load_engine("acme")
    assert caught.value.__cause__ is not None


# ---------------------------------------------------------------- engines that are not installed, or twice


@pytest.mark.parametrize("module", ["no_such_module_at_all", "json.no_such_module", "no_such_module_at_all.part"])
def test_a_missing_requirement_is_named_with_the_way_to_install_it(site: Site, module: str) -> None:
    site.add_engines(
        "acme-engines", f"info('acme', requires=('json', 'json.decoder', '{module}'), install_hint='pip install acme[native]')"
    )
    plugins = Plugins()
    (entry,) = plugins.engines()
    assert entry.state is EngineState.NOT_INSTALLED
    assert entry.reason == f"needs {module}, which is not installed: pip install acme[native]"
    with pytest.raises(EngineNotInstalledError, match=r"engine 'acme' of acme-engines needs .*: pip install acme\[native\]") as caught:
        plugins.load_engine("acme")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, EngineLookupError)


def test_requirements_that_are_there_are_found_without_importing_them(site: Site) -> None:
    package = site.add_engines("acme-engines", "info('acme', requires=('{0}.native.part',))")
    plugin = site.path / package / "plugin.py"
    plugin.write_text(plugin.read_text().replace("{0}", package))
    (site.path / package / "native").mkdir()
    (site.path / package / "native" / "__init__.py").write_text("raise ImportError('listing must not import this')")
    (site.path / package / "native" / "part.py").touch()
    assert states(Plugins()) == {"acme": EngineState.OK}


def test_two_engines_of_one_name_are_refused_naming_both_distributions(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add_engines("acme-engines", "info('acme')", "info('other')", version="1.1")
    site.add_engines("fork-of-acme", "info('acme')", version="2.2")
    plugins = Plugins()
    with pytest.raises(DuplicateEngineError) as caught:
        plugins.load_engine("acme")
    assert "acme-engines 1.1" in str(caught.value)
    assert "fork-of-acme 2.2" in str(caught.value)
    assert [(e.name, e.state) for e in plugins.engines()] == [
        ("acme", EngineState.BROKEN),
        ("acme", EngineState.BROKEN),
        ("other", EngineState.OK),
    ]
    assert plugins.default_engine() == "other"
    monkeypatch.setenv(STRICT_VARIABLE, "1")
    with pytest.raises(DuplicateEngineError):
        Plugins()


def test_two_distributions_that_ship_one_module_offer_its_engine_twice(site: Site) -> None:
    package = site.add_engines("acme-engines", "info('acme')")
    site.add_metadata("acme-again", f"[rmqstore]\nacme = {package}.plugin\n")
    with pytest.raises(DuplicateEngineError, match="acme-again"):
        Plugins().load_engine("acme")


def test_a_distribution_found_twice_on_the_path_counts_once(site: Site, tmp_path: Path) -> None:
    site.add_engines("acme-engines", "info('acme')")
    site.add_metadata("Acme.Engines", "[rmqstore]\nacme = gone.plugin\n", version="0.9")
    found = list(metadata.distributions())
    assert len(found) == 2
    assert len(Plugins().engines()) == 1


# ---------------------------------------------------------------- the default engine


def test_the_default_is_the_preferred_durable_engine_that_can_be_opened(site: Site) -> None:
    site.add_engines(
        "acme-engines",
        "info('volatile', capabilities=VOLATILE, preference=99)",
        "info('absent', requires=('no_such_module_at_all',), preference=50)",
        "info('third', preference=10)",
        "info('second', preference=20)",
        "info('first', preference=20)",
    )
    assert Plugins().default_engine() == "first", "and first of the alphabet"


def test_no_durable_engine_is_an_error_that_says_what_was_seen(site: Site) -> None:
    site.add_engines(
        "acme-engines",
        "info('volatile', capabilities=VOLATILE)",
        "info('absent', requires=('no_such_module_at_all',), install_hint='pip install absent')",
    )
    with pytest.raises(EngineNotInstalledError) as caught:
        Plugins().default_engine()
    assert "absent (needs no_such_module_at_all, which is not installed: pip install absent), volatile (keeps nothing)" in str(caught.value)


def test_settings_of_all_engines_are_collected(site: Site) -> None:
    site.add_engines("acme-engines", "info('acme', settings=(Setting('acme.size', int, 1, 'Its size.'),))", "info('plain')")
    settings = Plugins().engine_settings()
    assert {name: [s.key for s in found] for name, found in settings.items()} == {"acme": ["acme.size"], "plain": []}


# ---------------------------------------------------------------- the other hooks

HOOKS: dict[str, Callable[[Plugins], list[object]]] = {
    "rmqstore_conformance_cases": lambda plugins: [offer.item for offer in plugins.conformance_cases()],
    "rmqstore_workloads": lambda plugins: [offer.item for offer in plugins.workloads()],
}


@pytest.mark.parametrize("hook", HOOKS)
def test_offers_carry_their_origin_and_a_failing_plugin_is_left_out(site: Site, hook: str) -> None:
    site.add("one", f"@hookimpl\ndef {hook}(): return ['a', 'b']", entry_point="one")
    site.add("two", f"@hookimpl\ndef {hook}(): return 1 // 0", entry_point="two", version="7")
    site.add("three", f"@hookimpl\ndef {hook}(): return ['c']", entry_point="three")
    plugins = Plugins()
    with pytest.warns(PluginHookWarning, match=f"'two' of two 7 failed in {hook}: ZeroDivisionError"):
        assert sorted(map(str, HOOKS[hook](plugins))) == ["a", "b", "c"]
    offers = plugins.workloads if hook == "rmqstore_workloads" else plugins.conformance_cases
    with pytest.warns(PluginHookWarning):
        assert {(offer.item, offer.distribution, offer.version) for offer in offers()} >= {("c", "three", "1.0")}


def test_every_plugin_hears_of_an_opened_store(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = [
        site.add(name, "seen = []\n@hookimpl\ndef rmqstore_store_opened(store): seen.append(store)", entry_point=name)
        for name in ("one", "two")
    ]
    site.add("bad", "@hookimpl\ndef rmqstore_store_opened(): raise OSError('no room')", entry_point="bad")
    plugins = Plugins()
    store = object()
    with pytest.warns(PluginHookWarning, match="failed in rmqstore_store_opened: OSError: no room"):
        plugins.notify_opened(store)
    assert [sys.modules[f"{package}.plugin"].seen for package in heard] == [[store], [store]]
    monkeypatch.setenv(STRICT_VARIABLE, "1")
    with pytest.raises(OSError, match="no room"):
        Plugins().notify_opened(store)


# ---------------------------------------------------------------- in a process of its own


def test_listing_imports_neither_an_engine_nor_what_it_requires() -> None:
    code = """
        import sys, warnings
        warnings.simplefilter("ignore")
        from rmqstore.plugins import EngineState, get_plugins
        entries = get_plugins().engines()
        for entry in entries:
            if entry.info:
                assert not set(entry.info.requires) & set(sys.modules), entry
                assert entry.info.factory.partition(":")[0] not in sys.modules, entry
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
