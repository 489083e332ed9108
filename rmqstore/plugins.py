"""Finding plug-ins and engines: discovery, broken plug-ins, and a typed face over pluggy.

Entry points of the group ``rmqstore`` are loaded one by one. What fails is remembered as a :class:`BrokenPlugin`, warned about once, and
reported in full only when its engine is asked for by name; with ``RMQSTORE_STRICT_PLUGINS=1`` in the environment it is raised at once.
The ``except`` clauses are wide since a plug-in's code may raise anything.
"""

from __future__ import annotations

import difflib
import enum
import importlib
import importlib.machinery
import importlib.util
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, NoReturn, cast

import msgspec
import pluggy

from rmqstore import hookspecs, settings
from rmqstore.contract import API_VERSION, Capabilities, Durability, Engine, EngineInfo, Flush, Inspector, Operation, Setting
from rmqstore.errors import BrokenEngineError, DuplicateEngineError, EngineNotInstalledError, UnknownEngineError

if TYPE_CHECKING:
    from rmqstore.store import Store

STRICT_VARIABLE = "RMQSTORE_STRICT_PLUGINS"

_ENGINE_NAME = re.compile(r"[a-z][a-z0-9_]*")


class BrokenPluginWarning(UserWarning):
    """A plug-in could not be loaded and is left out; asking for its engine by name raises the full error."""


class PluginHookWarning(UserWarning):
    """A plug-in raised an error in a hook; the call went on without it."""


class EngineState(enum.Enum):
    """Whether an engine can be opened."""

    OK = "ok"
    NOT_INSTALLED = "not installed"
    BROKEN = "broken"


class BrokenPlugin(msgspec.Struct, frozen=True):
    """A plug-in, or one engine of it, that cannot be used.

    ``name`` is the engine's name, or that of the entry point when the plug-in did not get as far as naming engines.
    """

    name: str
    distribution: str
    version: str
    error: BaseException

    def __str__(self) -> str:
        return f"plug-in '{self.name}' of {self.distribution} {self.version} is broken: {_described(self.error)}"


class EngineEntry(msgspec.Struct, frozen=True):
    """One engine as ``rmqstore engines`` lists it; ``info`` is None when its plug-in is broken, ``reason`` is empty when it is OK."""

    name: str
    info: EngineInfo | None
    distribution: str
    version: str
    state: EngineState
    reason: str = ""


class Offer(msgspec.Struct, frozen=True):
    """What a plug-in returned from a hook, with where it came from."""

    item: object
    distribution: str
    version: str


class _Source(msgspec.Struct, frozen=True):
    """One loaded entry point."""

    name: str
    distribution: str
    version: str
    module: object


class Plugins:
    """The plug-ins of this Python environment. Discovery runs once, in the constructor.

    Raises:
        BrokenEngineError: a plug-in is broken, and ``RMQSTORE_STRICT_PLUGINS=1``.
        DuplicateEngineError: two engines have one name, and ``RMQSTORE_STRICT_PLUGINS=1``.
    """

    def __init__(self) -> None:
        self._strict = os.environ.get(STRICT_VARIABLE, "") not in ("", "0")
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._broken: list[BrokenPlugin] = []
        self._sources = list(self._load_entry_points())
        self._offers = list(self._offered_engines(self._sources))
        if self._strict:
            for info, _ in self._offers:
                self._refuse_duplicates(info.name)
        for broken in self._broken:
            warnings.warn(f"{broken}; `rmqstore engines` lists what works", BrokenPluginWarning, stacklevel=3)

    def add(self, module: object) -> None:
        """Take in a module that implements hooks, as if an entry point named it; again does nothing.

        For engines under development and for tests, in this process alone.

        Raises:
            pluggy.PluginValidationError: it implements an unknown hook, or one with arguments that the hook has not.
        """
        if self._manager.is_registered(module):
            return
        name = getattr(module, "__name__", repr(module))
        self._register(module, name)
        self._sources.append(source := _Source(name, name, "", module))
        self._offers += self._offered_engines([source])

    # ------------------------------------------------------------ engines

    @property
    def broken(self) -> tuple[BrokenPlugin, ...]:
        """What could not be loaded, in the order of discovery."""
        return tuple(self._broken)

    def engines(self) -> list[EngineEntry]:
        """Return every known engine, sorted by name; imports no engine's C extension."""
        entries = [self._entry(info, source) for info, source in self._offers]
        entries += [EngineEntry(b.name, None, b.distribution, b.version, EngineState.BROKEN, _remedy(b)) for b in self._broken]
        return sorted(entries, key=lambda entry: (entry.name, entry.distribution))

    def engine_settings(self) -> dict[str, tuple[Setting, ...]]:
        """Return the settings of every engine whose plug-in works, by engine name, as :func:`rmqstore.config.load` takes them."""
        return {info.name: info.settings for info, _ in self._offers}

    def load_engine(self, name: str) -> tuple[EngineInfo, Engine]:
        """Import the engine ``name`` and return it with its declaration.

        Raises:
            UnknownEngineError: no plug-in offers it; the message names the nearest ones.
            DuplicateEngineError: two distributions offer it.
            EngineNotInstalledError: a module that it requires is missing.
            BrokenEngineError: its plug-in, or the engine itself, does not import.
        """
        info, source = self._installed(name)
        try:
            engine = _resolve(info.factory)()
            if not isinstance(engine, Engine):
                raise TypeError(f"{info.factory} returned {type(engine).__name__}, which is no rmqstore.contract.Engine")
        except Exception as error:
            _raise_broken(BrokenPlugin(name, source.distribution, source.version, error))
        return info, engine

    def load_inspector(self, name: str) -> Inspector | None:
        """Import what looks at the files of the engine ``name``; None when it announces nothing like that.

        Raises:
            UnknownEngineError, DuplicateEngineError, EngineNotInstalledError, BrokenEngineError: as for :meth:`load_engine`.
        """
        info, source = self._installed(name)
        if not info.inspector:
            return None
        try:
            inspector: Any = _resolve(info.inspector)
            if not callable(inspector):
                raise TypeError(f"{info.inspector} is no callable but {inspector!r:.40}")
        except Exception as error:
            _raise_broken(BrokenPlugin(name, source.distribution, source.version, error))
        return cast("Inspector", inspector)

    def default_engine(self) -> str:
        """Return the installed engine of the highest ``preference`` whose acknowledged calls survive something under ``flush = "sync"``.

        Raises:
            EngineNotInstalledError: there is none; the message says what could be installed.
        """
        usable = [entry.info for entry in self.engines() if entry.state is EngineState.OK and entry.info is not None]
        durable = [info for info in usable if min(info.capabilities.durability[Flush.SYNC].values()) > Durability.NONE]
        if durable:
            return max(durable, key=lambda info: info.preference).name
        seen = [f"{entry.name} ({entry.reason or 'keeps nothing'})" for entry in self.engines()]
        found = f"found: {', '.join(seen)}" if seen else "no engine was found at all"
        raise EngineNotInstalledError(
            f"no durable engine is installed; {found}; install one, for example by: pip install 'rmqstore[all]', or name an engine"
        )

    # ------------------------------------------------------------ the other hooks

    def conformance_cases(self) -> list[Offer]:
        """Return the conformance cases of all plug-ins; one that fails is warned about and left out."""
        return self._collected("rmqstore_conformance_cases")

    def workloads(self) -> list[Offer]:
        """Return the benchmark workloads of all plug-ins; one that fails is warned about and left out."""
        return self._collected("rmqstore_workloads")

    def notify_opened(self, store: Store) -> None:
        """Tell every plug-in that ``store`` is open; one that fails is warned about."""
        self._called("rmqstore_store_opened", store=store)

    # ------------------------------------------------------------ discovery

    def _load_entry_points(self) -> Iterator[_Source]:
        for distribution in _distributions():
            name, version = _identity(distribution)
            try:
                entry_points = list(distribution.entry_points.select(group=hookspecs.PROJECT))
            except Exception as error:
                self._note_broken(BrokenPlugin(name, name, version, error))
                continue
            for entry_point in entry_points:
                try:
                    module = entry_point.load()
                    self._register(module, f"{name}:{entry_point.name}")
                except (Exception, SystemExit) as error:
                    self._note_broken(BrokenPlugin(entry_point.name, name, version, error))
                else:
                    yield _Source(entry_point.name, name, version, module)

    def _register(self, module: object, name: str) -> None:
        """Register ``module``; one that implements an unknown hook, or one with arguments it has not, is refused."""
        if self._manager.is_registered(module):
            return  # two distributions ship one module; its engines will count as offered twice
        try:
            self._manager.register(module, name)
            self._manager.check_pending()
        except pluggy.PluginValidationError:
            if self._manager.is_registered(module):
                self._manager.unregister(module)
            raise

    def _offered_engines(self, sources: Sequence[_Source]) -> Iterator[tuple[EngineInfo, _Source]]:
        for source in sources:
            try:
                infos = [info for offered in self._caller("rmqstore_engines", source)() for info in offered]
            except Exception as error:
                self._note_broken(BrokenPlugin(source.name, source.distribution, source.version, error))
                continue
            for info in infos:
                try:
                    yield _checked_info(info), source
                except Exception as error:
                    name = info.name if isinstance(info, EngineInfo) and isinstance(info.name, str) else source.name
                    self._note_broken(BrokenPlugin(name, source.distribution, source.version, error))

    def _note_broken(self, broken: BrokenPlugin) -> None:
        if self._strict:
            _raise_broken(broken)
        self._broken.append(broken)

    # ------------------------------------------------------------ look-up

    def _installed(self, name: str) -> tuple[EngineInfo, _Source]:
        """Return the offer of ``name`` when the modules that it requires are there."""
        info, source = self._offer(name)
        missing = _missing_modules(info.requires)
        if missing:
            raise EngineNotInstalledError(f"engine '{name}' of {source.distribution} {_not_installed(info, missing)}")
        return info, source

    def _offer(self, name: str) -> tuple[EngineInfo, _Source]:
        self._refuse_duplicates(name)
        for info, source in self._offers:
            if info.name == name:
                return info, source
        for broken in self._broken:
            if broken.name == name:
                _raise_broken(broken)
        known = sorted({entry.name for entry in self.engines()})
        nearest = difflib.get_close_matches(name, known, n=2)
        hint = f"; did you mean {' or '.join(repr(near) for near in nearest)}?" if nearest else ""
        if any(re.match(rf"rmqstore-{re.escape(name)}\b", each) for each in metadata.requires("rmqstore") or ()):
            raise EngineNotInstalledError(f"engine {name!r} is not installed; install it by: pip install 'rmqstore[{name}]'")
        raise UnknownEngineError(f"no engine is called {name!r}{hint}; known engines: {', '.join(known) or 'none'}")

    def _refuse_duplicates(self, name: str) -> None:
        offering = [source for info, source in self._offers if info.name == name]
        if len(offering) > 1:
            who = " and ".join(f"{source.distribution} {source.version}" for source in offering)
            raise DuplicateEngineError(
                f"engine '{name}' is offered by {who}; keep one of them: pip uninstall {' | '.join(s.distribution for s in offering)}"
            )

    def _entry(self, info: EngineInfo, source: _Source) -> EngineEntry:
        missing = _missing_modules(info.requires)
        state, reason = (EngineState.NOT_INSTALLED, _not_installed(info, missing)) if missing else (EngineState.OK, "")
        try:
            self._refuse_duplicates(info.name)
        except DuplicateEngineError as error:
            state, reason = EngineState.BROKEN, str(error)
        return EngineEntry(info.name, info, source.distribution, source.version, state, reason)

    # ------------------------------------------------------------ calling hooks

    def _caller(self, hook: str, source: _Source) -> pluggy.HookCaller:
        """Return ``hook`` for the plug-in ``source`` alone, so that its answer and its errors are known to be its own."""
        others = [plugin for plugin in self._manager.get_plugins() if plugin is not source.module]
        return self._manager.subset_hook_caller(hook, others)

    def _collected(self, hook: str) -> list[Offer]:
        answers = self._called(hook)
        return [Offer(item, source.distribution, source.version) for source, answer in answers for item in answer]

    def _called(self, hook: str, **arguments: object) -> list[tuple[_Source, list[object]]]:
        """Call ``hook`` of one plug-in after the other; return what each one gave, made flat, and warn about those that fail."""
        answers: list[tuple[_Source, list[object]]] = []
        for source in self._sources:
            try:
                answer = self._caller(hook, source)(**arguments)
                answers.append((source, [item for items in answer for item in items]))
            except Exception as error:
                if self._strict:
                    raise
                message = f"plug-in '{source.name}' of {source.distribution} {source.version} failed in {hook}: {_described(error)}"
                warnings.warn(message, PluginHookWarning, stacklevel=4)
        return answers


# ---------------------------------------------------------------- entry points and distributions


def _distributions() -> Iterator[metadata.Distribution]:
    """Yield each distribution with entry points of our group; of two with one name the first on ``sys.path`` counts, as for imports."""
    header = f"[{hookspecs.PROJECT}]"
    seen: set[str] = set()
    for distribution in metadata.distributions():
        if header in (distribution.read_text("entry_points.txt") or ""):
            name = re.sub(r"[-_.]+", "-", _identity(distribution)[0]).lower()
            if name not in seen:
                seen.add(name)
                yield distribution


def _identity(distribution: metadata.Distribution) -> tuple[str, str]:
    """Return name and version, also when the metadata file is damaged."""
    fields = distribution.metadata
    return fields["Name"] or "an unnamed distribution", fields["Version"] or "(no version)"


# ---------------------------------------------------------------- checking and importing


def _checked_info(info: EngineInfo) -> EngineInfo:
    """Return ``info`` when the framework can work with it; an error that says why when not."""
    if not isinstance(info, EngineInfo):
        raise TypeError(f"rmqstore_engines() must return EngineInfo objects, not {type(info).__name__}")
    if info.api_version != API_VERSION:
        raise ValueError(
            f"it was written for version {info.api_version} of the engine contract and this rmqstore has version {API_VERSION}; "
            "install versions of both that match"
        )
    if not _ENGINE_NAME.fullmatch(info.name) or info.name in settings.RESERVED_NAMES:
        raise ValueError(f"{info.name!r} cannot be an engine's name: small letters, digits and _, and not the name of a setting")
    if not isinstance(info.capabilities, Capabilities):
        raise TypeError(f"the capabilities of engine '{info.name}' must be Capabilities, not {type(info.capabilities).__name__}")
    for flush in Flush:
        undeclared = set(Operation) - set(info.capabilities.durability.get(flush, ()))
        if undeclared:
            names = ", ".join(sorted(operation.value for operation in undeclared))
            raise ValueError(f"engine '{info.name}' does not declare the durability of {names} under flush = {flush.value}")
    settings.check_engine_settings(info.name, info.settings)
    return info


def _missing_modules(names: Sequence[str]) -> list[str]:
    """Return those of ``names`` that cannot be found, without importing any."""
    return [name for name in names if not _is_findable(name)]


def _is_findable(name: str) -> bool:
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
        for part in rest:
            if spec is None:
                return False
            top = f"{top}.{part}"
            spec = importlib.machinery.PathFinder.find_spec(top, spec.submodule_search_locations or ())
    except (ImportError, ValueError):
        return False
    return spec is not None


def _not_installed(info: EngineInfo, missing: Sequence[str]) -> str:
    hint = f": {info.install_hint}" if info.install_hint else ""
    return f"needs {', '.join(missing)}, which is not installed{hint}"


def _resolve(place: str) -> Callable[[], object]:
    """Import ``module:attribute``."""
    module, _, attribute = place.partition(":")
    found: Callable[[], object] = getattr(importlib.import_module(module), attribute)
    return found


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _remedy(broken: BrokenPlugin) -> str:
    return f"{_described(broken.error)}; repair {broken.distribution}, or remove it: pip uninstall {broken.distribution}"


def _raise_broken(broken: BrokenPlugin) -> NoReturn:
    who = f"plug-in '{broken.name}' of {broken.distribution} {broken.version}"
    raise BrokenEngineError(f"{who} is broken: {_remedy(broken)}") from broken.error


# ---------------------------------------------------------------- the plug-ins of this process

_lock = threading.Lock()
_plugins: list[Plugins] = []


def _look_again_in_forked_child() -> None:
    # A thread of the parent may have been about to discover them.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_look_again_in_forked_child)


def get_plugins() -> Plugins:
    """Return the plug-ins of this process; discovered at the first call."""
    with _lock:
        if not _plugins:
            _plugins.append(Plugins())
        return _plugins[0]
