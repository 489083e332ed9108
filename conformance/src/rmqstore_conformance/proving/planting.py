"""How a mutant is made: the ``memory`` engine with one fault planted, and the cases that must notice it.

A fault is a class with the calls of one side that go wrong, a subclass of :class:`Timers` or of :class:`Pops`; or a function that changes
the options that the engine is opened with. Its docstring says in one sentence what is wrong.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rmqstore.contract import EngineInfo, EngineOptions, Support
from rmqstore_conformance.proving.shaping import Change, Shaped, shaped_info

PREFIX = "mutant_"


class _Fault:
    """What all faults have: something to note between calls."""

    @property
    def noted(self) -> dict[Any, Any]:
        found: dict[Any, Any] = self.__dict__.setdefault("_noted_by_the_fault", {})
        return found


if TYPE_CHECKING:
    from rmqstore.engine.pops.store import OrderedPops
    from rmqstore.engine.timers.store import OrderedTimers

    class Timers(_Fault, OrderedTimers):
        """Base of faults of the timers; put before the class of the engine's own timers."""

    class Pops(_Fault, OrderedPops):
        """Base of faults of the pops; put before the class of the engine's own pops."""

else:

    class Timers(_Fault):
        """Base of faults of the timers; put before the class of the engine's own timers."""

    class Pops(_Fault):
        """Base of faults of the pops; put before the class of the engine's own pops."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A wrong engine; called, it gives the engine.

    Attributes:
        what: what is wrong, in a sentence.
        clause: the clause that it is meant to break.
        caught_by: ids of cases, without what they are repeated for, each of which must fail.
        place: the module and the attribute that hold this.
        declares: capabilities that it declares otherwise than ``memory``.
    """

    name: str
    what: str
    clause: str
    caught_by: tuple[str, ...]
    place: tuple[str, str]
    fault: Any
    declares: dict[str, Support] = {}

    @property
    def engine(self) -> str:
        """The engine's name."""
        return PREFIX + self.name

    @property
    def info(self) -> EngineInfo:
        """The announcement of the engine."""
        info = shaped_info(self.engine, Shaped)
        capabilities = msgspec.structs.replace(info.capabilities, **self.declares)
        return msgspec.structs.replace(info, capabilities=capabilities, factory=":".join(self.place))

    def __call__(self) -> Shaped:
        """Return the engine."""
        if not isinstance(self.fault, type):
            return Shaped(settle=self.fault)
        change = _before(self.fault)
        return Shaped(timers=change) if issubclass(self.fault, Timers) else Shaped(pops=change)


def _before(fault: type) -> Change:
    return lambda base: type(fault.__name__, (fault, base), {})


def mutant(clause: str, *caught_by: str, **declares: Support) -> Callable[[Any], Mutant]:
    """Make a mutant of a fault; see the attributes of the same names."""

    def planted(fault: type | Callable[[EngineOptions], EngineOptions]) -> Mutant:
        what = inspect.getdoc(fault)
        if not what:
            raise TypeError(f"{fault.__name__} does not say what is wrong")
        return Mutant(
            name=re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", fault.__name__).lower(),
            what=" ".join(what.split()),
            clause=clause,
            caught_by=caught_by,
            place=(fault.__module__, fault.__name__),
            fault=fault,
            declares=declares,
        )

    return planted
