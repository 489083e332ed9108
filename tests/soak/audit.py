"""The account of a soak: what its processes wrote into their ledgers, beside what the store holds in the end, by message id.

A line of a ledger is a kind, the time (ns, by the clock that only goes forward and that all processes share), an id, and words:

- ``sending ID TOPIC DUE`` before a send, with its deliver time or ``-``, and ``sent ID`` when it was answered;
- ``cancelling ID ?`` before a cancel by handle, and ``cancel ID OUTCOME``;
- ``popped ID BEGUN DELIVER_AT_MS AT_MOST_MS``: a delivery, when its pop began, and a time that the store's clock had never been beyond when
  it was answered; ``handled ID`` and ``acked ID OUTCOME``: what was done with it;
- ``refused - ERROR``: a call that the store could not do, as when its disk was full; ``cut -``: one whose connection was cut.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rmqstore import Store


class Fate(msgspec.Struct):
    """What became of one message.

    Attributes:
        topic: None when nobody was about to send it.
        due: the deliver time that it was sent with, ``-`` when it had none of its own; ``deliver_at`` is what it came with.
        cancel: the answer to its cancel; empty when there was no cancel, ``?`` when there was no answer.
        first_ack, last_pop: when the first ack was answered that was none too late, and when the last pop began that gave it, ns.
        is_early: it was given before the store's clock can have come to its deliver time.
    """

    topic: str | None = None
    due: str = "-"
    deliver_at: str = ""
    is_sent: bool = False
    cancel: str = ""
    handled: int = 0
    acked: int = 0
    first_ack: int = 0
    last_pop: int = 0
    is_early: bool = False

    def faults(self, kept: str, stored: int) -> Iterator[str]:
        """Say what no store may do; ``stored``: how often it is in the topic ``kept``, from which nothing was taken away."""
        is_owed = self.is_sent and self.cancel not in ("CANCELLED", "?")
        found = {
            "never sent, but there": self.topic is None,
            "sent, and never handled": is_owed and not self.handled,
            "sent, and not in its topic": is_owed and self.topic == kept and not stored,
            "stored more than once": stored > 1,
            "cancelled, and delivered": self.cancel == "CANCELLED" and bool(self.last_pop or stored),
            "unknown to the cancel with its own handle": self.cancel == "UNKNOWN",
            "acked more than once": self.acked > 1,
            "delivered after its ack": bool(self.first_ack) and self.last_pop > self.first_ack,
            "delivered before its time": self.is_early,
            "delivered for another time than it was sent for": bool(self.last_pop) and self.due not in ("-", self.deliver_at),
        }
        return (what for what, is_so in found.items() if is_so)


class Account:
    """What the ledgers of a directory say so far; :meth:`read` goes on.

    Attributes:
        counts: how many lines of each kind there were; those of cancels, acks and refusals with the word behind the id.
        stored: how often each message is in the topic that was read.
    """

    def __init__(self, ledgers: Path) -> None:
        self._ledgers = ledgers
        self._read_bytes: Counter[Path] = Counter()
        self._fates: dict[str, Fate] = defaultdict(Fate)
        self.counts: Counter[str] = Counter()
        self.stored: Counter[str] = Counter()

    @property
    def redelivered(self) -> int:
        """How many deliveries were not the first of their message."""
        return self.counts["popped"] - sum(each.last_pop > 0 for each in self._fates.values())

    def read(self) -> None:
        """Read what was written meanwhile; a line that is not whole stays for later."""
        for path in sorted(self._ledgers.glob("*.ledger")):
            with open(path, "rb") as file:
                file.seek(self._read_bytes[path])
                whole, end, _ = file.read().rpartition(b"\n")
            self._read_bytes[path] += len(whole) + len(end)
            for line in whole.decode().splitlines():
                kind, at, message_id, *words = line.split(" ")
                self.counts[f"{kind} {words[0]}" if kind in ("cancel", "acked", "refused") else kind] += 1
                if message_id != "-":
                    self._take(self._fates[message_id], kind, int(at), words)

    def _take(self, fate: Fate, kind: str, at: int, words: list[str]) -> None:
        if kind == "sending":
            fate.topic, fate.due = words
        elif kind == "sent":
            fate.is_sent = True
        elif kind in ("cancelling", "cancel"):
            (fate.cancel,) = words
        elif kind == "popped":
            begun, fate.deliver_at, at_most_ms = words
            fate.last_pop = max(int(begun), fate.last_pop)
            fate.is_early |= int(fate.deliver_at) > int(at_most_ms)
        elif kind == "handled":
            fate.handled += 1
        elif words[0] in ("ACKED", "ALREADY_ACKED"):
            fate.acked += words[0] == "ACKED"
            fate.first_ack = min(at, fate.first_ack or at)

    def read_topic(self, store: Store, topic: str, queues: int) -> None:
        """Read all that the queues of a topic hold."""
        for queue in range(queues):
            offset = 0
            while len(page := store.read(topic, queue, offset, 10_000)):
                rows = page.columns.select(["message_id", "store_ms", "deliver_at_ms", "queue_offset"]).to_pylist()
                for row in rows:
                    self.stored[row["message_id"]] += 1
                    self._fates[row["message_id"]].is_early |= row["store_ms"] < (row["deliver_at_ms"] or 0)
                offset = rows[-1]["queue_offset"] + 1

    def wrong(self, kept: str) -> Iterator[str]:
        """Say what is wrong, a line each, with some of the ids; ``kept`` is the topic that was read."""
        found: dict[str, list[str]] = defaultdict(list)
        for message_id, fate in sorted(self._fates.items()):
            for what in fate.faults(kept, self.stored[message_id]):
                found[what].append(message_id)
        yield from (f"{what}: {len(ids)} messages: {', '.join(ids[:10])}{' …' if len(ids) > 10 else ''}" for what, ids in found.items())
