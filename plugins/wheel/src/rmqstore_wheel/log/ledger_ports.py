"""What a ledger is given, and what works beside it: sizes, the caches of the timers, what other readers want."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from rmqstore_wheel.formats import commit_log as log_format
from rmqstore_wheel.formats import index_file
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.log.check_point import CheckPoint, TimerSection
from rmqstore_wheel.log.journal import Change, Copied


class Sizes(NamedTuple):
    """Sizes of the files; RocketMQ's, unless somebody asks for less.

    Attributes:
        check_point_bytes, check_point_calls: after so much of the log, or so many calls, a check point is due.
        index_slots, index_entries: of an index file.
        slice_bytes: of the log are looked at, or copied, in a piece.
        copy_live_percent: from files of which less is live, what is live is copied.
    """

    log_file_bytes: int = log_format.FILE_BYTES
    queue_file_units: int = 300_000
    timer_file_units: int = 2_016_492
    check_point_bytes: int = 64 * 1024 * 1024
    check_point_calls: int = 50_000
    index_slots: int = index_file.SLOTS
    index_entries: int = index_file.SLOTS * index_file.ENTRIES_PER_SLOT
    slice_bytes: int = 4 * 1024 * 1024
    copy_live_percent: int = 30


class TimerCaches(Protocol):
    """What the timers derive from the log."""

    def start(self, section: TimerSection | None) -> None:
        """Begin with what a check point says, or with nothing."""

    def replay(self, view: memoryview, file_start: int, starts: Ints, sizes: Ints, frame_epochs: Ints) -> None:
        """Apply records of the wheel's topic that were found in a file of the log."""

    def check_point(self) -> TimerSection:
        """Make everything durable that a check point vouches for."""

    def release(self) -> None:
        """Let files go that the check point written last needs no more."""

    def copied(self, seqs: Ints) -> Copied:
        """Return what copies of timers do not say themselves."""

    def take_copied(self, change: Copied) -> None:
        """Apply what was said of copies, behind them."""

    def unsaid(self) -> list[Change]:
        """Return what is neither in the state nor follows from messages that are kept."""

    def reopen(self) -> None:
        """Let go of the files, and forget everything; ``start`` comes next."""

    def close(self) -> None:
        """Let go of the files."""


class Beside(msgspec.Struct, frozen=True, gc=False):
    """Records that go before the journal record of a call. Their queue offsets are in them, their units are somebody else's business.

    Attributes:
        store_ms: the latest of their store times.
        commit: called with their places in the log once they are there.
    """

    records: Sequence[bytes]
    store_ms: int
    commit: Callable[[Iterable[int]], None]


class ForReaders(Protocol):
    """What is written for those who read the files with RocketMQ's eyes."""

    def beside(self, changes: Sequence[Change]) -> Beside | None:
        """Return what a call that makes these changes appends as well."""

    def settle(self) -> None:
        """Bring caches to what was written, and let go of what nobody needs any more, before a check point."""

    def check_pointed(self, found: CheckPoint) -> None:
        """Write what goes with a check point that was just written."""

    def closed(self) -> None:
        """Note that the end was an orderly one."""

    def close(self) -> None:
        """Let go of the files."""
