"""A data set as one store: a command's call goes to each shard, and the answers are joined, each by the rule of its call.

Calls that have no such rule, since they speak of one queue or change one store, are refused with the way on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from msgspec.structs import astuple

from rmqstore.contract import Lag, PendingCounts, Subscription, TopicInfo
from rmqstore.errors import UnsupportedOperationError
from rmqstore.server.calls import Passing
from rmqstore.store.dead_letters import DeadLetter
from rmqstore.store.reader import Reader

if TYPE_CHECKING:
    from rmqstore.store.opening import OwnedEngines


class Shards(Passing):
    """Every shard of the data set ``path``, open; each answers for a moment of its own. Who opened the shards closes them.

    Attributes:
        opened: the shards in their order.
    """

    def __init__(self, path: Path, opened: Sequence[Reader]) -> None:
        self._path = path
        self.opened = opened

    def refuse(self, call: str) -> NoReturn:
        """Refuse a call that makes no sense here.

        Raises:
            UnsupportedOperationError: always.
        """
        raise UnsupportedOperationError(
            f"{self._path} is a data set of stores, and {call} is for one store; name one of its shards, such as {self.opened[0].path}"
        )

    def _pass(self, call: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if call not in _JOINS:
            self.refuse(call)
        return _JOINS[call]([attrgetter(call)(shard)(*arguments, **named) for shard in self.opened])

    if not TYPE_CHECKING:

        @property
        def engine(self) -> OwnedEngines:
            """Not there: each shard has engines of its own."""
            self.refuse("engine")

    def __repr__(self) -> str:
        return f"<rmqstore.cli.Shards {self._path} ({len(self.opened)})>"


# ---------------------------------------------------------------- how answers are joined, which are given shard by shard


def _concatenated(answers: Sequence[Sequence[Any]]) -> list[Any]:
    return list(chain.from_iterable(answers))


def _pending(answers: Sequence[PendingCounts]) -> PendingCounts:
    return PendingCounts(
        counts=tuple(map(sum, zip(*(each.counts for each in answers), strict=True))),
        total=sum(each.total for each in answers),
        earliest_ms=min((each.earliest_ms for each in answers if each.earliest_ms is not None), default=None),
        latest_ms=max((each.latest_ms for each in answers if each.latest_ms is not None), default=None),
    )


def _lag(answers: Sequence[Lag]) -> Lag:
    return Lag(*map(sum, zip(*map(astuple, answers), strict=True)))


def _topics(answers: Sequence[Sequence[TopicInfo]]) -> list[TopicInfo]:
    """Join the topics by name; their queues follow each other, shard after shard."""
    found: dict[str, list[TopicInfo]] = {}
    for info in _concatenated(answers):
        found.setdefault(info.name, []).append(info)
    return [
        TopicInfo(
            name=name,
            queues=sum(each.queues for each in infos),
            min_offsets=tuple(chain.from_iterable(each.min_offsets for each in infos)),
            max_offsets=tuple(chain.from_iterable(each.max_offsets for each in infos)),
        )
        for name, infos in sorted(found.items())
    ]


def _subscriptions(answers: Sequence[Sequence[Subscription]]) -> list[Subscription]:
    found: dict[tuple[str, str], list[Subscription]] = {}
    for each in _concatenated(answers):
        found.setdefault((each.group, each.topic), []).append(each)
    return [
        Subscription(group, topic, any(each.is_ordered for each in those), max(each.active_ms for each in those))
        for (group, topic), those in sorted(found.items())
    ]


def _letters(answers: Sequence[Sequence[DeadLetter]]) -> list[DeadLetter]:
    return sorted(_concatenated(answers), key=lambda letter: letter.died_ms)


def _outcomes(answers: Sequence[Sequence[Any]]) -> list[Any]:
    """Join the outcomes of handles or receipts: each is known to one shard at most."""
    return [next((one for one in each if one.name != "UNKNOWN"), each[0]) for each in zip(*answers, strict=True)]


def _verified(answers: Sequence[Sequence[str]]) -> list[str]:
    return [f"shard {shard}: {difference}" for shard, differences in enumerate(answers) for difference in differences]


_JOINS: Final[dict[str, Callable[[Any], Any]]] = {
    "ack": _outcomes,
    "cancel": _outcomes,
    "cancel_keys": lambda answers: [_concatenated(each) for each in zip(*answers, strict=True)],
    "dead_letters.list": _letters,
    "dead_letters.parked": _letters,
    "get": lambda answers: next((each for each in answers if each is not None), None),
    "groups.list": lambda answers: sorted(set(_concatenated(answers))),
    "groups.offsets": _concatenated,
    "groups.subscriptions": _subscriptions,
    "lag": _lag,
    "leases": _concatenated,
    "pending": _pending,
    "topics.list": _topics,
    "verify": _verified,
    "where": _concatenated,
}
