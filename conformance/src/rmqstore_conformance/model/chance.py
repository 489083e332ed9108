"""What is drawn for one random history: its settings, names, values, times, and how often it does what (swarm testing).

Each part is drawn from a generator of its own, so that one part can be made plain while the others stay as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from rmqstore import Message
from rmqstore.message import MAX_TIME_MS
from rmqstore_conformance.data import BODIES, BORN_TIMES, GLUED, IDS, KEYS, MARKS, MESSAGE_GROUPS, NAMES, PROPERTIES, TAGS, Data, Family
from rmqstore_conformance.stores import DAY_MS, HOUR_MS, START_MS

T = TypeVar("T")

Passes = Callable[[Message], bool]
"""A filter."""

FIFO_QUEUES: Final = 3
NEAR_MS: Final = (-100_000, -1500, -1, 0, 1, 499, 500, 1000, 1001, 2500, 59_999, 60_000, HOUR_MS, 25 * HOUR_MS)
"""Deliver times from now that a history waits for."""
FAR_MS: Final = (7 * DAY_MS, 31 * DAY_MS, 400 * DAY_MS, 2**53 + 1 - START_MS, 2**53 + 2 - START_MS, 2**61, MAX_TIME_MS)
"""Deliver times from now of which only the first ones ever come."""
MOVES_MS: Final = (1, 100, 999, 1000, 1001, 5000, 60_000, HOUR_MS, DAY_MS, -1, -1000, -5000, -HOUR_MS, -DAY_MS)
FAR_MOVES_MS: Final = (8 * DAY_MS, 32 * DAY_MS, 401 * DAY_MS)
INVISIBLE_MS: Final = (1, 1000, 5000, 60_000, 600_000)
REASONS: Final = (
    "",
    "no answer",
    "¿por qué?",
    "bell\a, nul\0, del\x7f and\nlines",
    " blanks ",
    "x" * 2000,
    "é" * 600,
    "😀" * 300,
    "a\x01b\x02c",
)
"""Why work failed: with what is replaced, and longer than what is kept."""
BACKOFFS_MS: Final = ((), (1,), (500, 2000), (10_000, 30_000, 60_000))

_SETTINGS: Final[Mapping[str, tuple[Any, ...]]] = {
    "precision_ms": (1000, 100, 200, 500),
    "max_retries": (16, 2, 1, 0),
    "hand_over_limit": (4096, 1, 2),
    "max_in_flight": (0, 0, 3, 1),
    "retry_share": (0.2, 0.0, 1.0),
    "flush": ("sync", "async"),
    "cancel_memory_ms": (DAY_MS, 60_000),
    "outcome_memory_ms": (600_000, 5000),
    "mark_memory_ms": (7 * DAY_MS, 60_000),
    "init": ("min", "min", "max"),
}
_OF_RETENTION: Final[Mapping[str, tuple[Any, ...]]] = {
    "reclaim": ("consumed", "age"),
    "retention_ms": (0, 5000, HOUR_MS, 3 * DAY_MS),
    "group_expiry_ms": (0, 8000, 8 * HOUR_MS),
}
"""By setting: what it may be, the plain value first."""

CHANGEABLE: Final = ("hand_over_limit", "max_retries", "max_in_flight", "retry_share", "flush", "init", "reclaim", "retention_ms")
"""Settings that the next open of a store may change; nothing of what they were before matters then."""

_PLAIN_FAMILIES: Final[Mapping[str, Family[Any]]] = {
    "topic": NAMES[0],
    "group": NAMES[0],
    "id": IDS[0],
    "key": KEYS[0],
    "tag": TAGS[0],
    "message group": MESSAGE_GROUPS[0],
    "body": BODIES[0],
    "properties": PROPERTIES[0],
    "mark": MARKS[0],
    "born": BORN_TIMES[0],
}

_DATA, _NAMES, _TIMES = "data", "names", "times"
PLAIN: Final = frozenset((_DATA, _NAMES, _TIMES, *_SETTINGS, *_OF_RETENTION))
"""All that can be made plain."""


class Chance:
    """Draws of one step, or of one part of a plan."""

    def __init__(self, seed: str, *, small: bool = False) -> None:
        self._random = random.Random(seed)
        self._small = small

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self._random.randrange(len(choices))]

    def weighted(self, weights: Mapping[T, int]) -> T:
        return self._random.choices(list(weights), list(weights.values()))[0]

    def some(self, choices: Sequence[T], most: int, *, least: int = 1) -> list[T]:
        """Return some of the choices, one of them perhaps more than once; as few as may be in a small step."""
        count = least if self._small else self._random.randint(least, most)
        return [self.pick(choices) for _ in range(count)]

    def number(self, least: int, most: int) -> int:
        """Return a number, bounds included."""
        return self._random.randint(least, most)

    def one_in(self, number: int) -> bool:
        return self._random.randrange(number) == 0

    def seed(self) -> int:
        return self._random.getrandbits(32)


class Plan:
    """What one history has, apart from its steps.

    Args:
        support: the optional capabilities that both engines declare.
        plain: parts that have their plainest value: names of settings, data, names, times.
    """

    def __init__(
        self,
        seed: str,
        support: frozenset[str],
        precisions_ms: tuple[int, ...] = (1000, 500, 200, 100),
        plain: frozenset[str] = frozenset(),
    ) -> None:
        self.seed = seed
        self.support = support
        self.precisions_ms = precisions_ms
        self.plain = plain
        self.settings = self._drawn_settings()
        self.data = Data(f"{seed} data")
        if _DATA in plain:
            self.data.families.update(_PLAIN_FAMILIES)
        self._draw_names()
        self._draw_words()
        chance = self._chance("times")
        is_far = _TIMES not in plain and chance.one_in(3)
        self.delays_ms = NEAR_MS + FAR_MS * is_far
        self.moves_ms = MOVES_MS + FAR_MOVES_MS * (is_far and chance.one_in(2))
        self.look_every = 1 if _TIMES in plain else chance.pick((1, 3, 8))

    def _chance(self, part: str) -> Chance:
        return Chance(f"{self.seed} {part}")

    def _choices(self) -> dict[str, tuple[Any, ...]]:
        return {**_SETTINGS, **(_OF_RETENTION if "retention" in self.support else {})}

    def _drawn_settings(self) -> dict[str, Any]:
        choices = self._choices()
        choices["precision_ms"] = tuple(each for each in choices["precision_ms"] if each in self.precisions_ms)
        drawn = {name: found[0] if name in self.plain else self._chance(name).pick(found) for name, found in choices.items()}
        return {"reclaim": "age", **drawn, "fifo_queues": FIFO_QUEUES}

    def _draw_names(self) -> None:
        chance, data = self._chance("names"), self.data
        topics = [data.topic("t"), data.topic("u")]
        groups = [data.group("g"), data.group("h"), data.group("f")]
        attempts = [data.id("attempt x"), data.id("attempt y")]
        glued = chance.pick(GLUED)
        if _NAMES in self.plain:
            topics, groups, attempts = ["t", "u"], ["g", "h", "f"], ["x", "y"]
        elif chance.one_in(3):
            topics, groups[:2] = [glued[0], glued[2]], [glued[1], glued[3]]
        elif chance.one_in(2):
            groups[:2], attempts = [glued[0], glued[2]], [glued[1], glued[3]]
        groups = list(dict.fromkeys(groups))
        modes = chance.pick(((), ("f",), ("f", "h b"), ("all",))) if "fifo" in self.support else ()
        in_order = {(topic, groups[-1]) for topic in topics if "f" in modes} | {(topics[1], groups[1]) for _ in modes if "h b" in modes}
        in_order |= {(topic, group) for topic in topics for group in groups if "all" in modes}
        self.groups, self.attempts, self.in_order = tuple(groups), tuple(attempts), frozenset(in_order)
        self.topics = dict(zip(topics, chance.pick(((1, 2), (1, 1), (2, 3))), strict=True))

    def _draw_words(self) -> None:
        chance, data = self._chance("words"), self.data
        tags: tuple[str | None, ...] = (None, data.tag("red"), data.tag("blue"))
        # A tag expression cannot spell every tag, so it gets plain ones; SQL92 can.
        expressions = _DATA in self.plain or chance.one_in(2)
        if expressions:
            tags = (None, "red", "blue")
        red, blue = str(tags[1]), str(tags[2])
        filters: dict[str, Passes] = {"*": lambda message: True}
        if expressions:
            filters |= {red: lambda message: message.tag == red, f"{red} || {blue}": lambda message: message.tag in (red, blue)}
        if "sql92_filter" in self.support:
            spelled = red.replace("'", "''")
            filters["n > 9"] = lambda message: int(message.properties["n"]) > 9
            filters[f"TAGS = '{spelled}' OR n BETWEEN 5 AND 12"] = lambda message: (
                message.tag == red or 5 <= int(message.properties["n"]) <= 12
            )
        self.tags, self.filters, self.keys = tags, filters, (data.key("k1"), data.key("k2"), data.key("k3"))

    def changed(self, chance: Chance) -> dict[str, Any]:
        """Return some settings with which a store is opened the next time."""
        choices = self._choices()
        names = chance.some([name for name in CHANGEABLE if name in choices], 3, least=0)
        return {name: choices[name][0] if name in self.plain else chance.pick(choices[name]) for name in names}

    def without(self, part: str) -> Plan:
        """Return this plan with one more part plain."""
        return Plan(self.seed, self.support, self.precisions_ms, self.plain | {part})

    @property
    def parts(self) -> list[str]:
        return [part for part in sorted(PLAIN) if part not in self.plain]

    def weights(self, operations: Mapping[str, int]) -> dict[str, int]:
        """Return how often each operation comes in this history: some never, some far more often than usual."""
        chance = self._chance("swarm")
        return {name: weight * chance.pick((0, 1, 1, 1, 2, 6)) for name, weight in operations.items()}

    def __str__(self) -> str:
        plain = ", ".join(sorted(self.plain)) or "nothing"
        return f"{self.settings}; {self.data}; topics {self.topics}, groups {self.groups}, plain: {plain}"
