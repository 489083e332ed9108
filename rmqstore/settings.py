"""The framework's settings as one table, and the rules that every value must pass, wherever it came from.

Engines declare their own settings in the same form (:class:`~rmqstore.contract.Setting`); :mod:`rmqstore.config` reads the sources.
"""

from __future__ import annotations

import enum
import math
import re
import reprlib
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from rmqstore.contract import UNLIMITED_MS, Setting
from rmqstore.errors import ConfigError

Value = int | float | str | bool

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_TEN_YEARS_MS = 3650 * _DAY_MS
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

_KEY = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)*")
_ONE_MS = timedelta(milliseconds=1)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


CORE_SETTINGS: tuple[Setting, ...] = (
    Setting("engine", str, "", "Engine of timers and pops; empty: the preferred one of the installed durable engines."),
    Setting("timer_engine", str, "", "Engine of the timers; empty: `engine`.", baked=True),
    Setting("pop_engine", str, "", "Engine of the pops; empty: `engine`.", baked=True),
    Setting(
        "flush",
        str,
        "sync",
        "When an acknowledged call is on disk: before the answer (`sync`), or at the next interval (`async`).",
        choices=("sync", "async"),
    ),
    Setting("flush_interval_ms", int, 500, "Time between two syncs under `flush = async`.", minimum=1, maximum=_HOUR_MS),
    Setting("precision_ms", int, 1000, "Width of a timer tick.", choices=(1000, 500, 200, 100), baked=True),
    Setting("default_queues", int, 1, "Queues of a topic that is made on demand.", minimum=1, maximum=1024),
    Setting("fifo_queues", int, 16, "Queues of such a topic if its first message has a message group.", minimum=1, maximum=1024),
    Setting(
        "init",
        str,
        "min",
        "Where a new group starts: with the first kept message (`min`), or with the next one (`max`).",
        choices=("min", "max"),
    ),
    Setting("max_delay_ms", int, 0, "Longest delay that a send may ask for; 0: the engine's own horizon.", minimum=0, maximum=UNLIMITED_MS),
    Setting(
        "congestion_limit",
        int,
        0,
        "Timers in one tick above which sends are refused with rising probability; 0: off.",
        minimum=0,
        maximum=_INT32_MAX,
    ),
    Setting("congestion_seed", int, 0, "Seed of the draws behind `congestion_limit`.", minimum=0, maximum=_INT64_MAX),
    Setting(
        "cancel_memory_ms",
        int,
        _DAY_MS,
        "How long past its due time a timer's cancel keeps being answered truly.",
        minimum=0,
        maximum=_TEN_YEARS_MS,
    ),
    Setting(
        "outcome_memory_ms",
        int,
        600_000,
        "How long past its expiry a lease's ack keeps being answered truly.",
        minimum=0,
        maximum=_TEN_YEARS_MS,
    ),
    Setting("mark_memory_ms", int, 7 * _DAY_MS, "How long a repeated mark is recognised.", minimum=0, maximum=_TEN_YEARS_MS),
    Setting("max_retries", int, 16, "Redeliveries of a message before it goes to the dead letter queue.", minimum=0, maximum=1000),
    Setting("max_in_flight", int, 0, "Leases per group, topic and queue; 0: no limit.", minimum=0, maximum=_INT32_MAX),
    Setting("retry_share", float, 0.2, "Share of pops that look at the retry topic first.", minimum=0, maximum=1),
    Setting(
        "retention_ms",
        int,
        0,
        "Age limit of messages in their topic, consumed or not; 0: none. What it takes unconsumed is counted as `expired` in `lag`.",
        minimum=0,
        maximum=_TEN_YEARS_MS,
    ),
    Setting(
        "reclaim",
        str,
        "consumed",
        "What makes room: that every group that has popped the topic has consumed a message (`consumed`), or its age alone (`age`).",
        choices=("age", "consumed"),
    ),
    Setting(
        "group_expiry_ms",
        int,
        0,
        "With `reclaim = consumed`: time without a pop after which a group no longer holds messages back; 0: it always does.",
        minimum=0,
        maximum=_TEN_YEARS_MS,
    ),
    Setting("revive_interval_ms", int, 1000, "Time between two looks for expired leases.", minimum=1, maximum=_HOUR_MS),
    Setting(
        "pop.buffer",
        bool,
        False,
        "Keep pops and acks in memory for a while, so that leases that are acked soon are never written; a crash loses what is there.",
    ),
    Setting("pop.buffer_stay_ms", int, 10_000, "With `pop.buffer`: how long it holds something.", minimum=1, maximum=_HOUR_MS),
    Setting("pop.buffer_left_ms", int, 3000, "With `pop.buffer`: leases that end sooner are written at once.", minimum=0, maximum=_HOUR_MS),
    Setting(
        "pop.buffer_check_points", int, 200_000, "With `pop.buffer`: check points that it holds at most.", minimum=1, maximum=_INT32_MAX
    ),
    Setting(
        "pop.buffer_queue_check_points",
        int,
        20_000,
        "With `pop.buffer`: check points of one group on one queue that it holds at most.",
        minimum=1,
        maximum=_INT32_MAX,
    ),
    Setting("hand_over_limit", int, 4096, "Messages in one hand-over batch.", minimum=1, maximum=1_000_000),
    Setting(
        "clock.max_step_ms",
        int,
        0,
        "Forward step of the clock above which the hand-over waits for confirmation; 0: off.",
        minimum=0,
        maximum=UNLIMITED_MS,
    ),
)

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
        plain = _as_float(plain)
    if type(plain) is not setting.type:
        raise _refusal(setting, f"{reprlib.repr(value)} ({type(value).__name__})", origin)
    if isinstance(plain, float) and not math.isfinite(plain):
        raise _refusal(setting, repr(value), origin)
    is_choice = not setting.choices or plain in setting.choices
    if not is_choice or _is_outside(setting, plain):
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


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _is_outside(setting: Setting, value: Value) -> bool:
    if isinstance(value, str):
        return False
    below = setting.minimum is not None and value < setting.minimum
    return below or (setting.maximum is not None and value > setting.maximum)


def _refusal(setting: Setting, given: str, origin: Origin) -> ConfigError:
    return ConfigError(f"{origin}: {setting.key} must be {allowed(setting)}, not {given}")
