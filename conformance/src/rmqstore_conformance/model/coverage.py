"""What random histories met: (operation, outcome, state), counted; and what of this they are expected to meet.

States are coarse: how a group pops (fifo or plain) and where its lease stands, how far a timer has come, on which side a mark is and how it
came again, what was deleted before, and what happened to the store since (reopened, crashed, copied, loaded).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple


class Met(NamedTuple):
    operation: str
    outcome: str
    state: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.outcome} ({self.state})"


_OF_ALL: Final = """
send | now | rows; marked; topic made anew
send | timers | rows; marked; topic made anew
send_batch | now | rows; columns; marked; topic made anew
send_batch | timers | rows; columns; marked; topic made anew
send again | repeated | later, all marks; later, one mark; later, others in front; later, within the memory; later, same open
send again | repeated | later, pending; later, delivered; later, cancelled; later, topic deleted; later, far
send again | repeated | now, all marks; now, one mark; now, others in front; now, within the memory; now, same open; now, sent
send again | repeated | now, topic deleted
send again | timers | later, past the memory
send again | now | now, past the memory
send again | refused | fewer rows
mark on the other side | now; timers | any
cancel | CANCELLED | pending; far; cancelled; same open
cancel | ALREADY_DELIVERED | delivered; same open
cancel | UNKNOWN | delivered; cancelled
cancel key | CANCELLED; ALREADY_DELIVERED; none | any
tick | handed over; retried; dead; nothing; expired | any
tick that breaks off | in the middle | 0 moved; 1 moved
tick with calls between | send; send_batch; fill; send_again; cancel; pop; ack; release; reject; change_invisible | any
tick with calls between | reset_offset; create_topic; delete_topic; delete_group; set_group; find; refused_call | any
refused call | a reserved topic; a queue that is none; no messages; a filter that is none; a reset beyond the end | any
pop | some; none | KIND, new; KIND, made anew; KIND, with leases; KIND, with none; KIND, messages; KIND, columns; KIND, request
pop | some; none | plain, with leases that back off
pop | some; none | filter of tags; filter SQL92
pop | repeat of some | KIND, with leases; KIND, messages; KIND, columns
pop | from the retry topic | any
pop | in place again | fifo
pop | refused | other mode
ack | ACKED | KIND running; KIND expired; columns, KIND; from the retry topic
ack | ACKED | KIND backing off running
change | CHANGED | KIND running; KIND expired; KIND backing off running; from the retry topic
retry later | CHANGED | KIND running; from the retry topic; by the group's table; by RocketMQ's table
release | RELEASED | KIND running; KIND expired; KIND backing off running; from the retry topic
reject | REJECTED | KIND running; KIND expired; KIND backing off running; from the retry topic
ack; change; retry later; release; reject | STALE | KIND changed; KIND revived; KIND released; KIND rejected; KIND reset
ack; change; retry later; release; reject | STALE | from the retry topic
ack; change; retry later; release; reject | UNKNOWN | KIND erased
ack; change; retry later; release; reject | ALREADY_ACKED | KIND acked; from the retry topic
reset | moved | KIND, leases; KIND, no leases; MIN; MAX; an offset
reset | refused | no topic; before the first kept
resend; drop | removed | KIND; plain, topic deleted since
create topic | made; widened; as it was | any
delete topic | deleted | leases; timers; nothing left; fifo run
delete group | deleted | leases; letters; fifo run; nothing left
set group | set | own retries; own table; none
find | PENDING; READY; LEASED; RETRY; DEAD; DONE | by id; by key
find | BACKING_OFF | by key
get | found; nothing | any
"""

_OF_DURABLE: Final = """
LIFE | goes on | with leases; with timers; with letters; with marks; with fifo runs; with backing off
copied; read beside | looked at | any
cancel | CANCELLED; ALREADY_DELIVERED | LIFE
send again | repeated | later, LIFE; now, LIFE
ack | ACKED; ALREADY_ACKED; STALE | LIFE
change | CHANGED; ALREADY_ACKED; STALE | LIFE
retry later | CHANGED; STALE | LIFE
release | RELEASED; ALREADY_ACKED; STALE | LIFE
reject | REJECTED; ALREADY_ACKED; STALE | LIFE
"""
"""A line: operations, outcomes, states; each of one with each of the others. KIND is fifo and plain, LIFE what may happen to a store."""

_NEEDS: Final = {
    "fifo": "fifo",
    "other mode": "fifo",
    "SQL92": "sql92_filter",
    "cancel key": "cancel_by_key",
    "expired (any)": "retention",
    "before the first kept": "retention",
    "copied": "snapshot",
    "loaded": "import_state",
    "read beside": "read_only_open",
}
"""What of it needs which capability."""


def expected(support: frozenset[str], *, durable: bool, survives_crashes: bool) -> set[Met]:
    """Return what histories are expected to meet, given what an engine declares."""
    found = set(_rows(_OF_ALL)) | (set(_rows(_OF_DURABLE)) if durable else set())
    absent = [words for words, need in _NEEDS.items() if need not in support] + ["crashed"] * (not survives_crashes)
    return {each for each in found if not any(words in str(each) for words in absent)}


def _rows(table: str) -> Iterator[Met]:
    for line in table.strip().splitlines():
        operations, outcomes, states = (part.split("; ") for part in line.split(" | "))
        for operation in _spelled(operations):
            for outcome in outcomes:
                for state in _spelled(states):
                    yield Met(operation, outcome, state)


def _spelled(words: Iterable[str]) -> Iterator[str]:
    for each in words:
        for kind in ("fifo", "plain") if "KIND" in each else ("",):
            for life in ("reopened", "crashed", "copied", "loaded") if "LIFE" in each else ("",):
                yield each.replace("KIND", kind).replace("LIFE", life)


class Coverage:
    def __init__(self) -> None:
        self.met: Counter[Met] = Counter()
        self.steps = 0
        self.histories = 0

    def note(self, operation: str, outcome: str, state: str = "any") -> None:
        self.met[Met(operation, outcome, state)] += 1

    def told(self, wanted: set[Met]) -> str:
        """Say how much was met, and name what was not."""
        holes = sorted(wanted - set(self.met))
        told = f"{self.histories} histories, {self.steps} steps, {len(wanted) - len(holes)} of {len(wanted)} expected outcomes"
        return f"{told}; not reached: {', '.join(map(str, holes))}" if holes else told
