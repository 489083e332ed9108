"""All of a store's files, read once, in an order in which an owner that goes on meanwhile makes nothing look damaged.

What points is read before what it points to: offsets before consume queues, the wheel before the timer log, that before the commit log.
Only the consume queues come after the log, since its records lead to the units to be compared.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from rmqstore_wheel.formats.check_points import REVIVE_PREFIX
from rmqstore_wheel.formats.messages import WHEEL_TOPIC
from rmqstore_wheel.inspecting import index_check, small_files, timers
from rmqstore_wheel.inspecting.files import FileSet, Findings
from rmqstore_wheel.inspecting.log import Frames, LogReader, QueueName, Tally
from rmqstore_wheel.inspecting.pending import Pending, Popped
from rmqstore_wheel.inspecting.queues import Queues
from rmqstore_wheel.inspecting.timers import LastUnits, TimerUnits, WheelCheck


class Survey:
    """What was found in a store's directory. Times are relative to ``now_ms``: the one given, or one that the files tell."""

    def __init__(self, root: Path, now_ms: int | None) -> None:
        self.root = root
        self.findings = Findings()
        self.small = small_files.read(root, self.findings)
        self.now_ms = self._now_ms() if now_ms is None else now_ms
        self.index = index_check.find(root, self.findings)
        self._read_timers()
        self._read_log()
        for queue in self.queues.queues.values():
            queue.check()
        self._check_offsets()
        index_check.check(self.index, self.findings, self.log.end if self.log.files.files else None)

    @property
    def read_ms(self) -> int | None:
        """Slots before this time are delivered; None when no file says so."""
        return None if self.small.timer_check is None else self.small.timer_check.read_ms

    def _now_ms(self) -> int:
        if self.small.timer_check is not None:
            return self.small.timer_check.read_ms
        return 0 if self.small.check_point is None else max(0, self.small.check_point.message_ms)

    # ------------------------------------------------------------ timers

    def _read_timers(self) -> None:
        findings, check = self.findings, self.small.timer_check
        self.wheels = timers.find_wheels(self.root, findings)
        self.log = LogReader(FileSet(self.root / "commitlog", self.root, findings))
        files = FileSet(self.root / "timerlog", self.root, findings)
        wheel = max((each for each in self.wheels if len(each.slots)), key=lambda each: each.position or 0, default=None)
        self.precision = None if wheel is None else timers.precision_of(wheel.slots, wheel.used, files, self.now_ms)
        last = None
        if wheel is not None and self.precision is not None:
            settled = 0 if check is None else check.timer_log_position
            last = LastUnits(wheel.slots, self.precision[0], settled if wheel.position is None else min(settled, wheel.position))
        self.units = TimerUnits(files, findings, self.read_ms, last, 0 if (self.root / "rmqstore").is_dir() else self.log.files.start)
        self.wheel_check = None
        if wheel is not None and last is not None:
            self.wheel_check = WheelCheck(wheel, self.units, last, self.read_ms)
            self.wheel_check.run(findings)
        if check is not None and files.files and check.timer_log_position > files.end:
            what = f"the timer log is said to be on disk up to {check.timer_log_position}, but it ends at {files.end}"
            findings.add("config/timercheck", 8, what)

    # ------------------------------------------------------------ the log

    def _read_log(self) -> None:
        findings, files = self.findings, self.log.files
        self.tallies: defaultdict[QueueName, Tally] = defaultdict(Tally)
        self.frames = Frames(self.log, findings)
        self.queues = Queues(self.root, self.log, findings)
        self.pending = Pending(self.now_ms, self.small.timer_check, self.units.superseded)
        self.popped = Popped(self.small.revived(), files, findings)
        for records in self.log.records(findings):
            self.frames.take(records)
            for name, rows in records.by_queue():
                self.tallies[name].take(records, rows)
                self.queues.take(name, records, rows)
                if name.topic == WHEEL_TOPIC:
                    self.pending.take(records, rows)
                if name.topic == WHEEL_TOPIC or name.topic.startswith(REVIVE_PREFIX):
                    self.popped.take(name, records, rows)
        if self.pending.needs_cancels:
            self._take_cancelled_away()
        self._check_reach()

    def _take_cancelled_away(self) -> None:
        """Read the log once more; a tombstone comes behind what it cancels."""
        for records in LogReader(self.log.files).records(Findings()):
            for name, rows in records.by_queue():
                if name.topic == WHEEL_TOPIC:
                    self.pending.take_away(records, rows)

    def _check_reach(self) -> None:
        """Note units of the timer log that lead behind the end of the commit log, and a store of ours that has none."""
        if not self.log.files.files and (self.root / "rmqstore").is_dir():
            self.findings.add("commitlog", None, "no file of the commit log is there, and in it is all that the store holds")
        for report in self.units.reports if self.log.files.files else []:
            log_offset, at = report.furthest
            if log_offset >= self.log.end:
                what = f"the unit leads to log offset {log_offset}, but the commit log ends at {self.log.end}"
                self.findings.add(report.file.name, at, what)

    def _check_offsets(self) -> None:
        """Note groups that are further than their queue."""
        offsets = self.small.offsets
        for name, queues in offsets.table.items() if offsets is not None else ():
            topic = name.partition("@")[0]
            for queue_id, offset in sorted(queues.items()):
                queue = self.queues.of(QueueName(topic, queue_id))
                if queue is not None and queue.files.files and offset > queue.end:
                    what = f"{name} is at offset {offset} of queue {queue_id}, which ends at {queue.end}"
                    self.findings.add("config/consumerOffset.json", None, what, kind="offsets behind the end of their queue")
