"""The files beside the log that a broker reads when it starts; the engine writes them and never reads what they say.

Written at every check point and at close (``StorePathConfigHelper``, ``BrokerPathConfigHelper``, ``StoreCheckpoint``)::

    config/consumerOffset.json      how far each group has read, by the rules of formats.config_files
    config/consumerOrderInfo.json   the un-acked run of every FIFO queue, by the same rules
    config/timercheck               how far the timers are; written in place
    checkpoint                      store time of the last message, up to which queues are on disk, and of the last one in an index file;
                                    written in place

A file that would say the same again is left alone. What is written in place is not synced: what stands there after a power cut is older, or
nothing, and a broker then only reads more of the log.

- The offset of a group that pops out of order is its next one: what it holds is in the revive log. That of a FIFO queue is the first
  message that is not acked. Those of the revive topic's reader are before the oldest check points that are needed.
- A FIFO run maps as far as RocketMQ has words for it: its first 64 messages, which are the bits that it has for acks, no attempt id (the
  engine keeps a hash), and one pop time, that of the latest pop; ends of leases that do not follow from it are told one by one.
- ``timercheck`` says that the slots before the first one with a pending timer are done.
- ``checkpoint`` says of the index files up to where they go, 0 when there are none. Of queues whose units are in a check point, as their
  files were not synced (``log.consume_queues``), it says when the first of these messages was stored: a broker reads the log from there.

There is no ``config/timermetrics``: pending timers are not counted by topic, and brokers count again where there is none.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeVar

from rmqstore.contract import NO_RETRY
from rmqstore.engine.pops.checkpoint import LEASED, Lease
from rmqstore.engine.pops.state import FifoRun, GroupQueue, load_fifo, load_groups, load_progress, load_topics
from rmqstore.engine.schema import EXPIRY, LEASE, LEASE_KEY, LEASES, U64, after_prefix
from rmqstore.errors import CorruptStoreError, StoreLockedError
from rmqstore_wheel.broker.revive_log import ReviveLog
from rmqstore_wheel.files.disk import Disk
from rmqstore_wheel.formats import commit_log as log_format, config_files
from rmqstore_wheel.formats.check_points import REVIVE_GROUP
from rmqstore_wheel.formats.config_files import BACKUP_SUFFIX, ConsumerOffsets, DataVersion, OrderInfo, TimerCheck
from rmqstore_wheel.log.check_point import CheckPoint
from rmqstore_wheel.log.journal import Change
from rmqstore_wheel.log.ledger import BrokerWriter, Ledger
from rmqstore_wheel.log.store_copy import ABORT, LOCK
from rmqstore_wheel.timers.index import TimerIndex

CONFIG: Final = "config"
CHECK_POINT: Final = "checkpoint"
_CHECK_POINT_BYTES: Final = 4096
_CHECK_POINT: Final = struct.Struct(">5q")
_MOST_OF_RUN: Final = 64

T = TypeVar("T")


def _no_records(changes: Sequence[Change]) -> None:
    """Write no check points and acks."""


class OpenMarks:
    """The files that tell a broker, and an open after a crash, that a store is open.

    - ``lock`` (``DefaultMessageStore``): locked as a broker locks it, so a broker and the engine never have the store open together;
    - ``abort``: the process id, from an open until an orderly close; a broker that finds it rebuilds its caches.

    Raises:
        StoreLockedError: a broker has it open.
    """

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self._lock = disk.create(root / LOCK)
        try:
            if not self._lock.lock():
                raise StoreLockedError(f"{root} is open in another process, by RocketMQ's lock file; stop the broker first")
            self._lock.write_at(0, LOCK.encode())
            with closing(disk.create(root / ABORT)) as abort:
                abort.write_at(0, str(os.getpid()).encode())
            disk.sync_directory(root)
        except BaseException:
            self._lock.close()
            raise

    def remove_abort(self) -> None:
        with suppress(FileNotFoundError):
            self._disk.remove(self._root / ABORT)

    def close(self) -> None:
        """Let other processes in."""
        self._lock.close()


class BrokerFiles(BrokerWriter):
    """All that is written for brokers: these files, the revive log, and the end of ``abort``.

    The caller serialises all calls. Without ``revive_log`` there are no check points and acks.
    """

    def __init__(self, ledger: Ledger, index: TimerIndex, marks: OpenMarks, revive_log: ReviveLog | None) -> None:
        self._marks = marks
        self.records = _no_records if revive_log is None else revive_log.records
        self._ledger = ledger
        self._disk = ledger.disk
        self._root = ledger.root
        self._config = ledger.root / CONFIG
        self._index = index
        self._revive_log = revive_log
        self._written: dict[str, object] = {}

    def settle(self) -> None:
        if self._revive_log is not None:
            self._revive_log.settle()

    def closed(self) -> None:
        self._marks.remove_abort()

    def close(self) -> None:
        self._marks.close()

    def check_pointed(self, found: CheckPoint) -> None:
        topics = {topic.id: topic.name for topic in load_topics(self._ledger).values()}
        groups = {group_id: name for name, group_id in load_groups(self._ledger).items()}
        runs = load_fifo(self._ledger)
        offsets = self._offsets(topics, groups, runs)
        orders = self._orders(topics, groups, runs)
        version = DataVersion(found.calls, 0, found.store_ms)
        changed: dict[str, bytes] = {}
        if self._is_new(config_files.OFFSETS_FILE, offsets, lambda data: config_files.decode_offsets(data).table):
            changed[config_files.OFFSETS_FILE] = config_files.encode_offsets(ConsumerOffsets(offsets, version))
        if self._is_new(config_files.ORDERS_FILE, orders, config_files.decode_orders):
            changed[config_files.ORDERS_FILE] = config_files.encode_orders(orders)
        check = self._timer_check(version)
        if changed or check != TimerCheck():
            self._disk.make_directory(self._config)
        if changed:
            self._replace(changed)
            self._written = {config_files.OFFSETS_FILE: offsets, config_files.ORDERS_FILE: orders}
        if check != TimerCheck():
            self._write_in_place(
                self._config / config_files.TIMER_CHECK_FILE, config_files.encode_timer_check(check), config_files.TIMER_CHECK_BYTES
            )
        times = _CHECK_POINT.pack(found.store_ms, self._queues_ms(found), self._index.keys.last_ms, 0, 0)
        self._write_in_place(self._root / CHECK_POINT, times, _CHECK_POINT_BYTES)

    def _queues_ms(self, found: CheckPoint) -> int:
        """Return the store time of the first message in the log whose unit may not be on disk; 0 when the log cannot be read there."""
        log = self._ledger.log
        places = [int.from_bytes(units[:8]) for _, _, stretches in found.unsynced for _, units in stretches]  # as a unit begins
        if not places:
            return found.store_ms
        record = b""
        with suppress(CorruptStoreError, OSError):
            record = log.record(max(min(places), log.chain.first), log_format.MIN_BYTES)
        return int.from_bytes(record[log_format.STORE_MS_AT : log_format.STORE_MS_AT + 8])

    # ------------------------------------------------------------ groups

    def _offsets(self, topics: dict[int, str], groups: dict[int, str], runs: dict[GroupQueue, FifoRun]) -> dict[str, dict[int, int]]:
        table: dict[str, dict[int, int]] = {}
        for reader, progress in sorted(load_progress(self._ledger).items()):
            name = _name(reader, topics, groups)
            if name is not None:
                table.setdefault(name, {})[reader.queue] = min(runs.get(reader, ()), default=progress.next_offset)
        if self._revive_log is not None:
            revived = {number: queue.first_needed() - 1 for number, queue in enumerate(self._revive_log.queues)}
            if passed := {number: offset for number, offset in revived.items() if offset >= 0}:
                table[config_files.offsets_key(self._revive_log.topic, REVIVE_GROUP)] = passed
        return table

    def _orders(self, topics: dict[int, str], groups: dict[int, str], runs: dict[GroupQueue, FifoRun]) -> config_files.OrderTable:
        if not runs:
            return {}
        leases: dict[GroupQueue, list[Lease]] = {}
        for key, _ in self._ledger.scan_all(LEASES, EXPIRY, after_prefix(EXPIRY)):
            lease_key = key[1 + U64.size :]
            reader = GroupQueue(*LEASE_KEY.unpack(lease_key)[:3])
            value = self._ledger.get(LEASES, LEASE + lease_key) if reader in runs else None
            if value is not None and (lease := Lease.decode(lease_key, value)).retry_flag == NO_RETRY:
                leases.setdefault(reader, []).append(lease)
        all_progress = load_progress(self._ledger)
        table: config_files.OrderTable = {}
        for reader, run in sorted(runs.items()):
            name = _name(reader, topics, groups)
            if name is not None:
                last_pop_ms = all_progress[reader].last_pop_ms if reader in all_progress else 0
                table.setdefault(name, {})[reader.queue] = _order_of(run, leases.get(reader, []), last_pop_ms)
        return table

    # ------------------------------------------------------------ timers

    def _timer_check(self, version: DataVersion) -> TimerCheck:
        index = self._index
        if not index.last_seq:
            return TimerCheck()
        wheel, precision_ms = index.wheel, index.precision_ms
        slots = [wheel.slot_of(tick) for tick in index.aside.values()]
        live = wheel.next_live(wheel.slot_of(0) - 1)
        if live is not None:
            slots.append(live)
        if not slots:
            behind = max((tick for tick, _ in index.forgotten.corners), default=index.write_ms)
            slots.append(wheel.slot_of(max(behind, index.write_ms)) + 1)
        position = wheel.units.position(wheel.units.count)
        return TimerCheck(max(min(slots), 0) * precision_ms, position, index.last_seq, index.last_seq, version)

    # ------------------------------------------------------------ writing

    def _is_new(self, name: str, value: T, decode: Callable[[bytes], T]) -> bool:
        """Say whether a file is to be written; one that has nothing to say is not made."""
        if name not in self._written:
            self._written[name] = None
            with suppress(OSError, CorruptStoreError):
                self._written[name] = decode((self._config / name).read_bytes())
        known = self._written[name]
        return known != value and (known is not None or bool(value))

    def _replace(self, files: dict[str, bytes]) -> None:
        """Write files so that at each moment each of them, or its backup, is whole."""
        paths = [(self._config / name, data) for name, data in files.items()]
        there = [path for path, _ in paths if path.exists()]
        for path in there:
            self._disk.rename(path, path.with_name(path.name + BACKUP_SUFFIX))
        if there:
            self._disk.sync_directory(self._config)
        for path, data in paths:
            self._disk.write_new(path, len(data), [(0, data)])
        self._disk.sync_directory(self._config)

    def _write_in_place(self, path: Path, data: bytes, length: int) -> None:
        with closing(self._disk.open(path) if path.exists() else self._disk.create(path, length)) as file:
            file.write_at(0, data)


def _name(reader: GroupQueue, topics: dict[int, str], groups: dict[int, str]) -> str | None:
    topic, group = topics.get(reader.topic_id), groups.get(reader.group_id)
    return None if topic is None or group is None else config_files.offsets_key(topic, group)


def _order_of(run: FifoRun, leases: list[Lease], last_pop_ms: int) -> OrderInfo:
    offsets = sorted(run)[:_MOST_OF_RUN]
    ends = {
        offset: lease.expiry_ms for lease in leases for offset, state in zip(lease.offsets, lease.states, strict=True) if state == LEASED
    }
    latest = max(leases, key=lambda lease: lease.place[4], default=None)
    pop_ms = last_pop_ms if latest is None else latest.place[4]
    invisible_ms = 0 if latest is None else latest.expiry_ms - pop_ms
    # What waits may be given at once.
    visible = {offset: ends.get(offset, pop_ms) for offset in offsets}
    return OrderInfo(
        pop_ms=pop_ms,
        invisible_ms=invisible_ms,
        offsets=offsets,
        last_consume_ms=last_pop_ms,
        visible_ms={offset: end for offset, end in visible.items() if end != pop_ms + invisible_ms} or None,
        consumed={offset: run[offset].delivered for offset in offsets if run[offset].delivered} or None,
    )
