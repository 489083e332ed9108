"""The framework's settings as one table, and the rules that every value must pass, wherever it came from.

Engines declare their own settings in the same form (:class:`~rmqstore.contract.Setting`); :mod:`rmqstore.config` reads the sources.
"""

from __future__ import annotations

import enum
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Annotated, get_args

import msgspec

from rmqstore.contract import UNLIMITED_MS, Flush, InitMode, Reclaim, Setting
from rmqstore.errors import ConfigError

Value = int | float | str | bool

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_TEN_YEARS_MS = 3650 * _DAY_MS
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

_KEY = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)*")
_ONE_MS = timedelta(milliseconds=1)
_DOTTED = ("pop_buffer", "pop_flush", "clock_")
"""So begin the fields in whose keys the first ``_`` is a dot."""

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class Rule(msgspec.Struct, frozen=True):
    """What a setting of the framework means and takes, beside its type and default."""

    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[int | str, ...] = ()
    baked: bool = False


class CoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the framework: a field each, with its rule; in a field's name the dot of a key is ``_``."""

    engine: Annotated[str, Rule("Engine of timers and pops; empty: the preferred one of the installed durable engines.")] = ""
    timer_engine: Annotated[str, Rule("Engine of the timers; empty: `engine`.", baked=True)] = ""
    pop_engine: Annotated[str, Rule("Engine of the pops; empty: `engine`.", baked=True)] = ""
    flush: Annotated[
        Flush, Rule("When an acknowledged call is on disk: before the answer (`sync`), or at the next interval (`async`).")
    ] = Flush.SYNC
    flush_interval_ms: Annotated[int, Rule("Time between two syncs under `flush = async` or `pop.flush = async`.", 1, _HOUR_MS)] = 500
    precision_ms: Annotated[int, Rule("Width of a timer tick.", choices=(1000, 500, 200, 100), baked=True)] = 1000
    default_queues: Annotated[int, Rule("Queues of a topic that is made on demand.", 1, 1024)] = 1
    fifo_queues: Annotated[int, Rule("Queues of such a topic if its first message has a message group.", 1, 1024)] = 16
    init: Annotated[InitMode, Rule("Where a new group starts: with the first kept message (`min`), or with the next one (`max`).")] = (
        InitMode.MIN
    )
    max_delay_ms: Annotated[int, Rule("Longest delay that a send may ask for; 0: the engine's own horizon.", 0, UNLIMITED_MS)] = 0
    congestion_limit: Annotated[
        int, Rule("Timers in one tick above which sends are refused with rising probability; 0: off.", 0, _INT32_MAX)
    ] = 0
    congestion_seed: Annotated[int, Rule("Seed of the draws behind `congestion_limit`.", 0, _INT64_MAX)] = 0
    cancel_memory_ms: Annotated[int, Rule("How long past its due time a timer's cancel is answered truly.", 0, _TEN_YEARS_MS)] = _DAY_MS
    outcome_memory_ms: Annotated[int, Rule("How long past its expiry a lease's ack is answered truly.", 0, _TEN_YEARS_MS)] = 600_000
    mark_memory_ms: Annotated[int, Rule("How long a repeated mark is recognised.", 0, _TEN_YEARS_MS)] = 7 * _DAY_MS
    max_retries: Annotated[int, Rule("Redeliveries of a message before it goes to the dead letter queue.", 0, 1000)] = 16
    max_in_flight: Annotated[int, Rule("Leases per group, topic and queue; 0: no limit.", 0, _INT32_MAX)] = 0
    retry_share: Annotated[float, Rule("Share of pops that look at the retry topic first.", 0, 1)] = 0.2
    retention_ms: Annotated[
        int,
        Rule(
            "Age limit of messages in their topic, consumed or not; 0: none. What it takes unconsumed is counted as `expired` in `lag`.",
            0,
            _TEN_YEARS_MS,
        ),
    ] = 0
    reclaim: Annotated[
        Reclaim,
        Rule("What makes room: that every group that has popped the topic has consumed a message (`consumed`), or its age alone (`age`)."),
    ] = Reclaim.CONSUMED
    group_expiry_ms: Annotated[
        int,
        Rule(
            "With `reclaim = consumed`: time without a pop after which a group no longer holds messages back; 0: it always does.",
            0,
            _TEN_YEARS_MS,
        ),
    ] = 0
    revive_interval_ms: Annotated[int, Rule("Time between two looks for expired leases.", 1, _HOUR_MS)] = 1000
    pop_flush: Annotated[
        Flush,
        Rule(
            "Whether a pop waits for the disk as other calls do (`sync`). If not (`async`), a crash may end leases early, as far as the "
            "engine declares for `flush = async`: their messages come again, and their receipts are stale. What is acked stays acked.",
        ),
    ] = Flush.SYNC
    pop_buffer: Annotated[
        bool,
        Rule(
            "Keep pops and acks in memory for a while, so that leases that are acked soon are never written; a crash loses what is there.",
        ),
    ] = False
    pop_buffer_stay_ms: Annotated[int, Rule("With `pop.buffer`: how long it holds something.", 1, _HOUR_MS)] = 10_000
    pop_buffer_left_ms: Annotated[int, Rule("With `pop.buffer`: leases that end sooner are written at once.", 0, _HOUR_MS)] = 3000
    pop_buffer_check_points: Annotated[int, Rule("With `pop.buffer`: check points that it holds at most.", 1, _INT32_MAX)] = 200_000
    pop_buffer_queue_check_points: Annotated[
        int, Rule("With `pop.buffer`: check points of one group on one queue that it holds at most.", 1, _INT32_MAX)
    ] = 20_000
    hand_over_limit: Annotated[int, Rule("Messages in one hand-over batch.", 1, 1_000_000)] = 4096
    clock_max_step_ms: Annotated[
        int, Rule("Forward step of the clock above which the hand-over waits for confirmation; 0: off.", 0, UNLIMITED_MS)
    ] = 0


def _declared(field: msgspec.structs.FieldInfo) -> Setting:
    kind, rule = get_args(field.type)
    key = field.name.replace("_", ".", 1) if field.name.startswith(_DOTTED) else field.name
    if issubclass(kind, enum.Enum):
        choices = tuple(each.value for each in kind)
        return Setting(key, str, field.default.value, rule.doc, choices=choices)
    return Setting(key, kind, field.default, rule.doc, rule.minimum, rule.maximum, rule.choices, rule.baked)


CORE_SETTINGS: tuple[Setting, ...] = tuple(map(_declared, msgspec.structs.fields(CoreSettings)))
"""The settings of the framework as declarations, like those of engines."""


def known_settings(engine_settings: Mapping[str, Sequence[Setting]]) -> dict[str, Setting]:
    """Return every setting by dotted key: the framework's, and those of engines by the engine's name."""
    return {setting.key: setting for setting in (*CORE_SETTINGS, *chain.from_iterable(engine_settings.values()))}


RESERVED_NAMES = frozenset(setting.key.split(".")[0] for setting in CORE_SETTINGS)
"""What no engine may be called, since its settings would be mistaken for the framework's."""


class Source(enum.Enum):
    """Where a value can come from; a later one wins, except that what is stored with the store must agree."""

    DEFAULT = "default"
    STORE_FILE = "file in the store"
    CONFIG_FILE = "file named by RMQSTORE_CONFIG"
    ENVIRONMENT = "environment"
    KEYWORD = "keyword"
    STORED = "stored"


class Origin(msgspec.Struct, frozen=True):
    """Where one value came from; ``place`` is a path, a variable or a keyword, and empty for a default."""

    source: Source
    place: str = ""

    def __str__(self) -> str:
        match self.source:
            case Source.DEFAULT:
                return "the default"
            case Source.ENVIRONMENT:
                return f"environment variable {self.place}"
            case Source.KEYWORD:
                return f"keyword argument {self.place}"
            case Source.STORED:
                return f"store {self.place}"
            case _:
                return self.place


DEFAULT = Origin(Source.DEFAULT)


def allowed(setting: Setting) -> str:
    """Return in words what ``setting`` takes."""
    if setting.choices:
        *most, last = (repr(choice) for choice in setting.choices)
        return f"{', '.join(most)} or {last}" if most else last
    if setting.type is bool:
        return "true or false"
    if setting.type is str:
        return "a text"
    kind = "a number" if setting.type is float else "a whole number of ms" if setting.key.endswith("_ms") else "a whole number"
    return kind + _range(setting)


def _range(setting: Setting) -> str:
    low = "" if setting.minimum is None else f"{setting.minimum:d}" if isinstance(setting.minimum, int) else f"{setting.minimum:g}"
    high = "" if setting.maximum is None else f"{setting.maximum:d}" if isinstance(setting.maximum, int) else f"{setting.maximum:g}"
    if low and high:
        return f" from {low} to {high}"
    return f" of at least {low}" if low else f" of at most {high}" if high else ""


def checked(setting: Setting, value: object, origin: Origin) -> Value:
    """Return ``value`` as the setting's type; a ``timedelta`` becomes ms, an enum member its value, an int a float where one is due.

    Raises:
        ConfigError: it has the wrong type (a bool is no number), or is none of what the setting takes.
    """
    plain = _plain(setting, value)
    if setting.type is float and isinstance(plain, int) and not isinstance(plain, bool):
        try:
            plain = float(plain)
        except OverflowError:
            plain = math.inf
    if type(plain) is not setting.type:
        raise _refusal(setting, f"{reprlib.repr(value)} ({type(value).__name__})", origin)
    if isinstance(plain, float) and not math.isfinite(plain):
        raise _refusal(setting, repr(value), origin)
    if setting.choices and plain not in setting.choices:
        raise _refusal(setting, reprlib.repr(value), origin)
    low, high = setting.minimum, setting.maximum
    if not isinstance(plain, str) and not (-math.inf if low is None else low) <= plain <= (math.inf if high is None else high):
        raise _refusal(setting, reprlib.repr(value), origin)
    return plain


def parsed(setting: Setting, text: str, origin: Origin) -> Value:
    """Read ``text``, the value of an environment variable, as the setting's type and check it.

    Raises:
        ConfigError: as for :func:`checked`.
    """
    if setting.type is str:
        return checked(setting, text, origin)
    try:
        value = _BOOLEANS[text.strip().lower()] if setting.type is bool else setting.type(text)
    except (KeyError, ValueError):
        raise _refusal(setting, reprlib.repr(text), origin) from None
    return checked(setting, value, origin)


def check_engine_settings(engine: str, settings: Sequence[Setting]) -> None:
    """Refuse settings that users could not write, or whose default breaks their own rule.

    Raises:
        ConfigError: a key is malformed, given twice or lacks the engine's prefix, or a default is not allowed.
    """
    seen: set[str] = set()
    for setting in settings:
        if not setting.key.startswith(f"{engine}.") or not _KEY.fullmatch(setting.key.removeprefix(f"{engine}.")):
            raise ConfigError(f"engine '{engine}' declares the setting {setting.key!r}; a key is '{engine}.' and words of small letters")
        if setting.key in seen:
            raise ConfigError(f"engine '{engine}' declares the setting {setting.key!r} twice")
        seen.add(setting.key)
        checked(setting, setting.default, Origin(Source.STORED, f"engine '{engine}'"))


def _plain(setting: Setting, value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, timedelta) and setting.type is int and setting.key.endswith("_ms"):
        whole, rest = divmod(value, _ONE_MS)
        return value if rest else whole
    return value


def _refusal(setting: Setting, given: str, origin: Origin) -> ConfigError:
    return ConfigError(f"{origin}: {setting.key} must be {allowed(setting)}, not {given}")
