"""The workloads of the comparison, by name: how long timers wait, how many are cancelled, how they are popped, what is measured.

Plug-ins offer more by the hook ``rmqstore_workloads``: each offer is the import name ``"package.module:ATTRIBUTE"`` of a
:class:`NamedWorkload`, which is imported when it is listed or run, so a plug-in need not depend on the benchmarks.
"""

from __future__ import annotations

import difflib
import pkgutil
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rmqstore.delays import RETRY_BACKOFF_MS
from rmqstore.errors import IllegalArgumentError
from rmqstore.plugins import get_plugins
from rmqstore_benchmarks.grid.tables import PHASE_NAMES

START_MS: Final = 1_700_000_000_000
"""The first time of every simulated clock, ms."""

HALF_HOUR_MS: Final = 1_800_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
LONGEST_DELAY_MS: Final = 100 * HOUR_MS
"""Log-normal delays are cut here, so that a drain knows when everything is due."""

TOPIC: Final = "orders"
PRECISION_MS: Final = 1000
BATCH: Final = 1000
"""Messages of one send or cancel where a phase does nothing else; fewer when the bodies are large."""

MIXED_BATCH: Final = 100
"""The same where everything goes on at once."""

POP_MESSAGES: Final = 32
INVISIBLE_MS: Final = 60_000
"""Length of a lease, simulated ms."""

ROLL_SPAN_MS: Final = 8 * DAY_MS
"""Simulated time of the phase ``roll``: about four rolls of a wheel that is two days long."""

Delays = NDArray[np.int64]
Draw = Callable[[np.random.Generator, int], Delays]
"""Draws so many delays, ms, each at least 1."""

STEADY_PHASES: Final = tuple(name for name in PHASE_NAMES if name != "roll")
_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")


class NamedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored, when it is due, and what becomes of it.

    Attributes:
        name: small letters, digits and ``-``.
        about: one sentence.
        delays_ms: draws so many delays from a generator, each at least 1 ms.
        cancelled: share of the timers that are cancelled, at a uniformly random moment of their wait.
        acked: share of the pops whose consumer lives to ack them; the leases of the others run out and their messages come again.
        has_keys: give every message a key of ten digits.
        at_once: the backlog is due in one tick, rather than spread as a store in equilibrium has it.
        phases: what makes sense for it, names of ``tables.PHASE_NAMES``; always ``fill``.
    """

    name: str
    about: str
    delays_ms: Draw
    cancelled: float = 0.0
    acked: float = 1.0
    has_keys: bool = False
    at_once: bool = False
    phases: tuple[str, ...] = STEADY_PHASES

    def __post_init__(self) -> None:
        """Refuse what cannot be run.

        Raises:
            IllegalArgumentError: a field is out of range; the message names it.
        """
        rules = {
            "name": _NAME.fullmatch(self.name) is not None,
            "cancelled": 0 <= self.cancelled < 1,
            "acked": 0 < self.acked <= 1,
            "phases": "fill" in self.phases and set(self.phases) <= set(PHASE_NAMES),
        }
        if wrong := [field for field, is_right in rules.items() if not is_right]:
            raise IllegalArgumentError(f"workload {self.name!r}: {wrong[0]} = {getattr(self, wrong[0])!r} is out of range")


def uniform(longest_ms: int) -> Draw:
    """Return what draws delays of up to ``longest_ms``."""
    return lambda rng, count: rng.integers(1, longest_ms, count)


def lognormal(median_ms: int, sigma: float) -> Draw:
    """Return what draws log-normal delays, cut at :data:`LONGEST_DELAY_MS`."""
    return lambda rng, count: _whole(np.minimum(median_ms * rng.lognormal(0.0, sigma, count), LONGEST_DELAY_MS))


def always(delay_ms: int) -> Draw:
    """Return what draws one delay only."""
    return lambda rng, count: np.full(count, delay_ms, np.int64)


def _soon(rng: np.random.Generator, count: int) -> Delays:
    return _whole(rng.exponential(30_000, count))


def _backoffs(rng: np.random.Generator, count: int) -> Delays:
    attempts = np.minimum(rng.geometric(0.5, count), len(RETRY_BACKOFF_MS))
    drawn: Delays = np.asarray(RETRY_BACKOFF_MS, np.int64)[attempts - 1]
    return drawn


def _whole(drawn: NDArray[np.float64]) -> Delays:
    return np.maximum(drawn, 1).astype(np.int64)


_ORDER_TIMEOUTS: Final = lognormal(HALF_HOUR_MS, 0.5)
_WITHOUT_CANCELS: Final = tuple(name for name in STEADY_PHASES if name != "cancel")
_OWN: Final = (
    NamedWorkload(
        name="order-timeout",
        about="Orders are closed unless paid: log-normal waits around 30 minutes, 85 % cancelled before.",
        delays_ms=_ORDER_TIMEOUTS,
        cancelled=0.85,
        has_keys=True,
    ),
    NamedWorkload(
        name="retry-backoff",
        about="Failed calls are tried again after 10 s, 30 s, 1 min … 2 h; every try fails again with probability one half.",
        delays_ms=_backoffs,
        phases=_WITHOUT_CANCELS,
    ),
    NamedWorkload(
        name="reminder",
        about="Reminders uniform over 30 days, so that a wheel rolls them; 10 % cancelled.",
        delays_ms=uniform(30 * DAY_MS),
        cancelled=0.1,
        phases=PHASE_NAMES,
    ),
    NamedWorkload(
        name="within-the-hour",
        about="Due times uniform over one hour, nothing cancelled.",
        delays_ms=uniform(HOUR_MS),
        phases=_WITHOUT_CANCELS,
    ),
    NamedWorkload(
        name="eight-oclock",
        about="Everything is due at eight o'clock, in one tick: how fast the engine gets rid of it.",
        delays_ms=always(8 * HOUR_MS),
        at_once=True,
        phases=tuple(name for name in STEADY_PHASES if name not in ("mixed", "open_50", "open_80", "open_95")),
    ),
    NamedWorkload(
        name="pop-heavy",
        about="Short waits, 30 s on average; one pop in ten is never acked, because its consumer dies, and comes again.",
        delays_ms=_soon,
        acked=0.9,
        phases=_WITHOUT_CANCELS,
    ),
)


def named_workloads() -> dict[str, NamedWorkload]:
    """Return all workloads by name: our own, then those of plug-ins.

    Raises:
        IllegalArgumentError: a plug-in offers something else, or a name that is taken; the message names its distribution.
    """
    found = {workload.name: workload for workload in _OWN}
    for offer in get_plugins().workloads():
        workload = _imported(offer.item, offer.distribution)
        if workload.name in found:
            raise IllegalArgumentError(f"{offer.distribution} {offer.version} offers a workload {workload.name!r}, a name that is taken")
        found[workload.name] = workload
    return found


def workload_named(name: str) -> NamedWorkload:
    """Return a workload by its name.

    Raises:
        IllegalArgumentError: there is none; the message names the nearest ones.
    """
    known = named_workloads()
    if name not in known:
        raise IllegalArgumentError(f"no workload is called {name!r}{nearest(name, known)}")
    return known[name]


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that says what a word that is not known may be."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; it takes {', '.join(names)}" if names else ""


def _imported(offered: Any, distribution: str) -> NamedWorkload:
    words = f"{distribution} offers {offered!r} as a workload; it must be the import name 'package.module:ATTRIBUTE' of a NamedWorkload"
    try:
        workload = pkgutil.resolve_name(offered)
    except (TypeError, ValueError, ImportError, AttributeError) as error:
        raise IllegalArgumentError(f"{words}, and cannot be imported: {error}") from error
    if not isinstance(workload, NamedWorkload):
        raise IllegalArgumentError(f"{words}, not of a {type(workload).__name__}")
    return workload
