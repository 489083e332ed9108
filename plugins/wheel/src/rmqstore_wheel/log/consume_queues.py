"""``ConsumeQueues``: for every queue of a topic, where its messages are in the commit log (``ConsumeQueue``).

A check point waits for no file of a queue to which units were only added since the last one, however many queues there are. It says of each
how far its files were synced, and holds the units behind that itself. Where that is much, files are synced for the next one, one a step of
upkeep.

Why no crash point loses or doubles a unit here. A check point says which units a queue has, and of these:

- Those that it says were synced were on disk, with all names that lead to them, before it was written. Nothing changes them until the next
  one is written: calls write behind them, and what they replace is in memory. For a check point that finds such units, or first files
  that are to go, the queue is synced as part of it, with caches in doubt meanwhile (``files.units.RebuildReason``).
- Those behind them are in the check point, whole or not at all. An open writes them over whatever a crash left of files and names, as
  it does with those that it finds in the log behind the check point; a reader does so in memory. So what the files hold there is never
  read before it was written again, and may be synced at any time, in any order, or never.

A sync between two check points makes only more of the same bytes durable, which the next one says; and an open changes nothing that the
check point says of files, so it may be cut short and begun again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from rmqstore_wheel.files.disk import Disk, share_of_descriptors
from rmqstore_wheel.files.units import RebuildReason, Sums, UnitLog
from rmqstore_wheel.formats import consume_queue
from rmqstore_wheel.formats.binary_columns import Flags, Ints, Rows

_OPEN_QUEUES: Final = 128
_SHARE_OF_DESCRIPTORS: Final = 8
"""No more files of queues are open than this part of what the process may open, and of each queue at least one to read and one to write."""

_FILL_BYTES: Final = 256 * 1024

_LONG: Final = 1024
"""A queue with so many units in a check point is synced behind it in any case, else they would be written again and again."""

QueueName = tuple[str, int]
"""A topic and the number of one of its queues."""

Stretches = list[tuple[int, bytes]]
"""Units that follow one another, as (queue offset of the first, units)."""


class ConsumeQueues:
    """The consume queues of a store, opened as they are needed; only so many keep their files open.

    Args:
        most_unsynced_bytes: a check point holds no more units than that. Behind one that holds half of it, files are synced, the ones of
            most units first.

    Attributes:
        dropped: names of queues whose files wait for the next check point.
        due: names of queues that :meth:`sync_next` syncs, the next one at the end.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        per_file: int,
        ask_rebuild: Callable[[RebuildReason], None],
        most_unsynced_bytes: int,
        unit_log: type[UnitLog] = UnitLog,
    ) -> None:
        self._ask_rebuild = ask_rebuild
        self._unit_log = unit_log
        self._disk = disk
        self._directory = directory
        self._per_file = per_file
        self._most_unsynced = most_unsynced_bytes // consume_queue.UNIT_BYTES
        self._logs: dict[QueueName, UnitLog] = {}
        # How far files were synced, and units behind that with the next offset when they were read.
        self._sums: dict[QueueName, Sums] = {}
        self._unsynced: dict[QueueName, tuple[int, Stretches]] = {}
        self.due: list[QueueName] = []
        # Those that may have their files open, the one that was opened last at the end.
        self._recent: dict[QueueName, UnitLog] = {}
        self._most_open = min(_OPEN_QUEUES, share_of_descriptors(_SHARE_OF_DESCRIPTORS))
        self._trimmed: dict[QueueName, int] = {}
        self._cleared: dict[QueueName, set[int]] = {}
        self.dropped: set[QueueName] = set()

    def start(
        self, sums: Mapping[QueueName, Sums], unsynced: Mapping[QueueName, Stretches], cleared: Mapping[QueueName, Sequence[int]]
    ) -> None:  # fmt: skip
        """Begin with the queues that a check point vouches for, see ``UnitLog.start``, and the units that it holds itself."""
        self._sums = dict(sums)
        self._cleared = {name: set(offsets) for name, offsets in cleared.items()}
        for name in sums:
            log = self.of(*name)
            if stretches := unsynced.get(name):
                numbers = [first + np.arange(len(units) // consume_queue.UNIT_BYTES) for first, units in stretches]
                log.reserve(np.concatenate(numbers), np.frombuffer(b"".join(units for _, units in stretches), consume_queue.UNIT))()
                self._unsynced[name] = log.count, stretches

    def _path_of(self, topic: str, queue: int) -> Path:
        return self._directory / consume_queue.directory_name(topic) / str(queue)

    def __iter__(self) -> Iterator[QueueName]:
        yield from self._sums.keys() | self._logs.keys()

    def __contains__(self, name: QueueName) -> bool:
        return name in self._sums or name in self._logs

    def of(self, topic: str, queue: int) -> UnitLog:
        """Return the log of a queue; an unknown one is empty."""
        name = (topic, queue)
        log = self._logs.get(name)
        if log is None:
            path = self._path_of(topic, queue)
            log = self._unit_log(
                self._disk, path, consume_queue.UNIT, self._per_file, fill=consume_queue.FILL, fill_bytes=_FILL_BYTES, made_above=3,
                ask_rebuild=self._ask_rebuild
            )  # fmt: skip
            sums = self._sums.get(name)
            if sums is None:
                # Files of a queue of this name that is gone hold nothing any more.
                self.dropped.discard(name)
                log.start_empty()
            else:
                log.start(sums)
            self._logs[name] = log
        if name not in self._recent:
            is_full = len(self._recent) >= self._most_open
            if is_full:
                oldest = next(iter(self._recent))
                del self._recent[oldest]
                if oldest in self._logs:
                    self._logs[oldest].close()
            self._recent[name] = log
            for each in [log] if is_full else self._recent.values():
                each.chain.most_open = max(self._most_open // len(self._recent), 2)
        return log

    def reserve(
        self, topic: str, queue: int, offsets: Ints, log_offsets: Ints, sizes: Ints, codes: Ints | int
    ) -> Callable[[], None]:  # fmt: skip
        """Write the units of messages at offsets that rise where no reader sees them; returns what makes them seen.

        Nothing is in gaps between them, nor before the first: timers and copies come in any order.
        """
        return self.of(topic, queue).reserve(offsets, consume_queue.rows_of(log_offsets, sizes, codes))

    def reserve_few(
        self, topic: str, queue: int, offset: int, log_offsets: Sequence[int], sizes: Sequence[int], codes: Sequence[int]
    ) -> Callable[[], None]:  # fmt: skip
        """As :meth:`reserve`, of a few messages from ``offset`` on."""
        log = self._recent.get((topic, queue)) or self.of(topic, queue)
        return log.reserve_few(offset, b"".join(map(consume_queue.encode_one, log_offsets, sizes, codes)))

    def read(self, topic: str, queue: int, offset: int, count: int) -> tuple[int, Rows]:
        """Return up to ``count`` units from ``offset``, or the first one that is kept, on, fewer at the end, and where they begin."""
        name = (topic, queue)
        log = self._recent.get(name)
        if log is None:
            if name in self.dropped:
                # Nothing was sent to the new queue of this name. The files of the old one are not touched, as a snapshot may copy them.
                return offset, np.zeros(0, consume_queue.UNIT)
            log = self.of(topic, queue)
        offset = max(offset, log.first, self._trimmed.get(name, 0))
        units = log.read(offset, max(min(count, log.count - offset), 0))
        cleared = self._cleared.get(name)
        if not cleared:
            return offset, units
        gone = [at - offset for at in cleared if offset <= at < offset + len(units)]
        units = units.copy()
        units[gone] = np.frombuffer(consume_queue.FILL, consume_queue.UNIT)[0]
        return offset, units

    def units_at(
        self, topic: str, queue: int, offsets: Ints, places: Ints
    ) -> tuple[Flags, Rows]:  # fmt: skip
        """Return which of the messages at some places of the log are those at some offsets of a queue, and the units of these."""
        found = np.zeros(len(offsets), np.bool_)
        log = self.of(topic, queue) if (topic, queue) in self else None
        if log is None:
            return found, np.zeros(0, consume_queue.UNIT)
        rows = np.flatnonzero((offsets >= self.first(topic, queue)) & (offsets < log.count))
        cleared = self._cleared.get((topic, queue))
        if cleared:
            rows = rows[~np.isin(offsets[rows], list(cleared))]
        units = log.gather(offsets[rows])
        here = (units["log_offset"] == places[rows]) & consume_queue.is_message(units)
        found[rows[here]] = True
        return found, units.compress(here)

    def first(self, topic: str, queue: int) -> int:
        return max(self.of(topic, queue).first, self._trimmed.get((topic, queue), 0))

    def trim(self, topic: str, queue: int, offset: int) -> None:
        """Let a queue begin at ``offset``; its files go after the next check point."""
        self._trimmed[topic, queue] = offset

    def clear(self, topic: str, queue: int, offsets: Sequence[int]) -> None:
        """Let some offsets hold nothing any more; that is kept beside the files, which never change."""
        self._cleared.setdefault((topic, queue), set()).update(offsets)

    def cleared(self) -> dict[QueueName, list[int]]:
        """Return the offsets that hold nothing any more, for a check point."""
        for name, offsets in self._cleared.items():
            first = self.first(*name)
            offsets.difference_update([at for at in offsets if at < first])
        return {name: sorted(offsets) for name, offsets in self._cleared.items() if offsets}

    def drop(self, topic: str, queue: int) -> None:
        """Remove a queue; its files go after the next check point."""
        log = self._logs.pop((topic, queue), None)
        if log is not None:
            log.close()
        self._sums.pop((topic, queue), None)
        self._unsynced.pop((topic, queue), None)
        self._trimmed.pop((topic, queue), None)
        self._cleared.pop((topic, queue), None)
        self._recent.pop((topic, queue), None)
        self.dropped.add((topic, queue))

    def check_point(self) -> tuple[dict[QueueName, Sums], dict[QueueName, Stretches]]:
        """Return how far the files of each queue were synced, and the units behind that: what a check point has to know."""
        for name, offset in self._trimmed.items():
            self.of(*name).trim(offset)
        behind: dict[QueueName, int] = {}
        for name, log in self._logs.items():
            known = self._sums.setdefault(name, Sums())
            if log.is_rewritten or log.first != known.first:
                self._sync(name)
            elif log.count > known.count:
                behind[name] = log.count - known.count
        names, left = sorted(behind, key=behind.__getitem__), sum(behind.values())
        while left > self._most_unsynced:
            left -= behind[names[-1]]
            self._sync(names.pop())
        unsynced = {name: self._units_behind(name) for name in names}
        # What is synced by the next check point is not written again by it.
        first = len(names)
        while first and (left > self._most_unsynced // 2 or behind[names[first - 1]] >= _LONG):
            first -= 1
            left -= behind[names[first]]
        self.due = names[first:]
        return dict(self._sums), unsynced

    def sync_next(self) -> None:
        """Sync a queue of which the last check point held much, if it is there and nothing but units behind the others came."""
        name = self.due.pop()
        log = self._logs.get(name)
        if log is not None and not log.is_rewritten:
            self._sync(name)

    def _sync(self, name: QueueName) -> None:
        log = self._logs[name]
        self._sums[name] = log.sync()
        self._unsynced.pop(name, None)
        if name not in self._recent:
            log.close()

    def _units_behind(self, name: QueueName) -> Stretches:
        """Return the units of a queue behind those that were synced; they are read when some came since the last look."""
        log = self._logs[name]
        count, stretches = self._unsynced.get(name, (0, []))
        if count != log.count:
            stretches = log.unsynced()
            self._unsynced[name] = log.count, stretches
            if name not in self._recent:
                log.close()
        return stretches

    def release(self) -> None:
        """Remove the files of what was trimmed or dropped, once a durable check point says so."""
        for name in self._trimmed:
            self.of(*name).release()
        for topic, queue in self.dropped:
            self._disk.remove_tree(self._path_of(topic, queue))
        self.dropped.clear()

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
