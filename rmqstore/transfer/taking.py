"""Taking the state of one store into another that is open: planned first, then chunk by chunk, then compared by digest.

The plan is stored in the target before anything else, as its record of the source (``Adopted``), and every chunk carries a mark. So an
interrupted run leaves a target that knows what it is in the middle of, and the next run of the same dump goes on with the same plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa

from rmqstore.contract import Capabilities, Side, Support
from rmqstore.contract.state import ADOPTED, Adopted
from rmqstore.digests import TableDigest, digest_rows
from rmqstore.errors import CorruptStoreError, TransferError
from rmqstore.message import MAX_QUEUES
from rmqstore.plugins import get_plugins
from rmqstore.store import Store
from rmqstore.tables import DIGESTED, TABLES, State
from rmqstore.transfer.incoming import Incoming, is_timer_table
from rmqstore.transfer.progress import Progress
from rmqstore.transfer.shifting import Shift

_SEQ_GAP: Final = 2**32
"""Seqs of a merged store begin so far above those there are, that no handle of a put that a crash took away can name one of them."""

_KEYS: Final = {"timer_marks": "mark", "pop_marks": "mark", "attempts": "attempt", "group_settings": "group", "group_queues": "topic"}
"""Tables in which a row of the target's own wins over one that has the same name."""


_SHARED: Final = ("subscriptions", "group_settings", "group_queues")
"""Tables that do not add up in a merge, as what both stores had becomes one row; in a new store nothing meets."""


class Taking:
    """One source on its way into one open store.

    Args:
        takes_over: the store is new and has the source's number; it becomes the source.
    """

    def __init__(self, target: Store, source: Incoming, progress: Progress, *, takes_over: bool) -> None:
        self._target = target
        self._source = source
        self._progress = progress
        self._takes_over = takes_over
        self._now_ms = 0

    def check(self, *, resuming: bool = False) -> None:
        """Find out before the first write whether the target can hold everything; nothing to find when this load was begun already.

        Args:
            resuming: a load of this dump that is complete is no mistake.

        Raises:
            TransferError: it cannot; the message says what.
        """
        if self.is_unfinished or (resuming and self._finished() is not None):
            return
        self._check_known()
        self._check_capabilities()
        if not self._takes_over:
            self._check_topics()

    def run(self, *, resuming: bool = False) -> dict[str, int]:
        """Take everything in; returns the rows by table. With ``resuming``, what an earlier run has finished is left as it is.

        Raises:
            TransferError: as for :meth:`check`.
            CorruptStoreError: what the target holds in the end is not what it should hold.
        """
        finished = self._finished()
        if finished is not None and (resuming or self.is_unfinished):
            # Everything was taken in and compared; perhaps one side does not know yet.
            self._adopt(finished)
            return self._source.counts()
        plan = self._unfinished()
        if plan is None:
            self.check()
            plan = self._planned()
        shift = Shift(
            seq_shift=plan.seq_shift,
            queue_shifts=plan.queue_shifts,
            from_precision_ms=self._source.precision_ms,
            to_precision_ms=self._target.timers.precision_ms,
            takes_over=self._takes_over,
        )
        # Both sides know the plan before either has anything else.
        self._adopt(plan)
        expected, counts = self._take(shift)
        self._flush()
        self._compare(plan, expected)
        self._adopt(*(shift.adopted(each) for each in self._adopted_by_source()))
        self._adopt(msgspec.structs.replace(plan, is_complete=True, before=""))
        self._flush()
        return counts

    # ------------------------------------------------------------ before the first write

    def _records(self) -> list[Adopted]:
        """Return what the sides know of the source."""
        found = (side.adopted().get(self._source.store_id) for side in (self._target.timers, self._target.pops))
        return [record for record in found if record is not None]

    def _unfinished(self) -> Adopted | None:
        """Return the plan of an interrupted load of the same dump, as long as rows may be missing."""
        records = [record for record in self._records() if record.dump_id == self._source.dump_id]
        return records[0] if records and not any(record.is_complete for record in records) else None

    def _finished(self) -> Adopted | None:
        """Return the record of a complete load of the same dump; one side may not know yet that it is complete."""
        return next((record for record in self._records() if record.is_complete and record.dump_id == self._source.dump_id), None)

    @property
    def is_unfinished(self) -> bool:
        """Whether an earlier run of this very load was interrupted."""
        records = [record for record in self._records() if record.dump_id == self._source.dump_id]
        return any(not record.is_complete for record in records)

    def _check_known(self) -> None:
        known = self._records()
        if any(not record.is_complete for record in known):
            raise TransferError(
                f"store {self._target.path} is in the middle of a load of another dump of store {self._source.broker}; go on with that one"
            )
        if known or (self._source.store_id == self._target.store_id and not self._takes_over):
            raise TransferError(
                f"{self._source.name} is of store {self._source.broker}, which store {self._target.path} holds already; "
                "a second time would double every message"
            )
        here = {**self._target.timers.adopted(), **self._target.pops.adopted()}
        for record in self._adopted_by_source():
            if record.store_tag in here or record.store_tag == self._target.store_id:
                raise TransferError(f"{self._source.name} holds store {record.broker}, and so does store {self._target.path}")

    def _adopted_by_source(self) -> list[Adopted]:
        records = {}
        for table in ("timer_adopted", "pop_adopted"):
            for row in self._source.rows(table):
                record = Adopted.from_bytes(row["record"])
                if not record.is_complete:
                    raise TransferError(f"{self._source.name} is in the middle of a load of store {record.broker}; finish that load first")
                if record.store_tag != self._source.store_id:
                    records[record.store_tag] = record
        return list(records.values())

    def _check_capabilities(self) -> None:
        config, needs = self._target.config, self._source.needs
        found = {name: get_plugins().load_engine(name)[0].capabilities for name in (config.timer_engine, config.pop_engine)}
        for engine, capabilities in found.items():
            for what, size, limit in self._sizes(capabilities):
                if size > limit:
                    raise TransferError(f"engine {engine!r} takes {what} of up to {limit} bytes, and {self._source.name} has one of {size}")
        if needs.fifo and found[config.pop_engine].fifo is not Support.FULL:
            raise TransferError(f"{self._source.name} has groups that pop in order, which engine {config.pop_engine!r} does not offer")

    def _sizes(self, capabilities: Capabilities) -> list[tuple[str, int, int]]:
        needs = self._source.needs
        return [
            ("bodies", needs.body_bytes, capabilities.max_body_bytes),
            ("properties", needs.properties_bytes, capabilities.max_properties_bytes),
            ("keys", needs.key_bytes, capabilities.max_key_bytes),
        ]

    def _check_topics(self) -> None:
        for topic, shift in self._queue_shifts().items():
            queues = shift + self._source_queues()[topic]
            if queues > MAX_QUEUES:
                raise TransferError(f"topic {topic!r} would get {queues} queues; a topic has at most {MAX_QUEUES}")
        own = {(each.group, each.topic): each.is_ordered for each in self._target.pops.subscriptions()}
        for row in self._source.rows("subscriptions"):
            known = own.get((row["group"], row["topic"]))
            if row["active_ms"] is not None and known is not None and known != row["is_ordered"]:
                raise TransferError(
                    f"group {row['group']!r} pops topic {row['topic']!r} in order in one of the stores and not in the other; "
                    "delete the group in one of them"
                )

    # ------------------------------------------------------------ the plan

    def _source_queues(self) -> dict[str, int]:
        queues: dict[str, int] = {}
        for row in self._source.rows("topics"):
            queues[row["topic"]] = max(queues.get(row["topic"], 0), row["queue_id"] + 1)
        return queues

    def _queue_shifts(self) -> dict[str, int]:
        here = {topic.name: topic.queues for topic in self._target.pops.topics()}
        return {topic: here[topic] for topic in self._source_queues() if topic in here}

    def _planned(self) -> Adopted:
        state = State(self._target.timers, self._target.pops)
        precision_ms = self._target.timers.precision_ms
        former = [
            Adopted.from_bytes(row["record"]) for row in self._source.rows("timer_adopted") if row["store_tag"] == self._source.store_id
        ]
        precisions = [each for record in former for each in record.precisions]
        if self._source.precision_ms != precision_ms:
            precisions.append(self._source.precision_ms)
        return Adopted(
            store_tag=self._source.store_id,
            broker=self._source.broker,
            epoch=self._source.epoch,
            last_seq=self._source.last_seq,
            seq_shift=0 if self._takes_over else state.last_seq + _SEQ_GAP,
            queues=self._source_queues(),
            queue_shifts={} if self._takes_over else self._queue_shifts(),
            precisions=tuple(dict.fromkeys(precisions)),
            dump_id=self._source.dump_id,
            before=json.dumps({table: digest.text() for table, digest in self._target.digest().items()}),
        )

    def _adopt(self, *records: Adopted) -> None:
        rows = [{"store_tag": record.store_tag, "record": record.to_bytes()} for record in records]
        if rows:
            batch = pa.RecordBatch.from_pylist(rows, schema=ADOPTED)
            for side, table in ((self._target.timers, "timer_adopted"), (self._target.pops, "pop_adopted")):
                side.sync(side.import_state([(table, batch)], self._now_ms))

    # ------------------------------------------------------------ the rows

    def _take(self, shift: Shift) -> tuple[dict[str, TableDigest], dict[str, int]]:
        expected = dict.fromkeys(DIGESTED, TableDigest())
        counts = dict.fromkeys(TABLES, 0)
        totals = self._source.counts()
        for table in TABLES:
            if table.endswith("_adopted"):
                continue
            for chunk, rows in self._moved(table, shift):
                mark = f"{self._source.dump_id}/{chunk}".encode()
                self._side(table).import_state([(table, rows)], self._now_ms, [mark])
                counts[table] += len(rows)
                if table in expected:
                    expected[table] += digest_rows(rows)
                self._progress(table, counts[table], max(totals.get(table, 0), counts[table]))
        return expected, counts

    def _moved(self, table: str, shift: Shift) -> Iterator[tuple[str, pa.RecordBatch]]:
        own = self._own_keys(table)
        for chunk, source_rows in self._source.chunks(table):
            rows = shift.rows(table, source_rows)
            if own:
                name = _KEYS[table]
                # A row that an interrupted run took in is not the target's own.
                keep = [own.get(row[name], row) == row for row in rows.to_pylist()]
                rows = rows.filter(pa.array(keep))
            yield chunk, rows

    def _own_keys(self, table: str) -> dict[bytes, object]:
        """Return what the target has of a table in which names could meet, by name."""
        if table not in _KEYS or self._takes_over:
            return {}
        return {row[_KEYS[table]]: row for row in State(self._target.timers, self._target.pops).rows(table)}

    def _side(self, table: str) -> Side:
        return self._target.timers if is_timer_table(table) else self._target.pops

    def _flush(self) -> None:
        self._target.timers.sync()
        self._target.pops.sync()

    def _compare(self, plan: Adopted, expected: dict[str, TableDigest]) -> None:
        """Compare what the target holds with what it held plus what was taken in."""
        before = {table: TableDigest.parse(text) for table, text in json.loads(plan.before).items()}
        found = self._target.digest()
        compared = [table for table in DIGESTED if table not in _SHARED or self._takes_over]
        wrong = [table for table in compared if found[table] != before[table] + expected[table]]
        if wrong:
            shown = "; ".join(f"{table}: {found[table].text()}, not {(before[table] + expected[table]).text()}" for table in wrong)
            raise CorruptStoreError(f"store {self._target.path} does not hold what was loaded ({shown})", file=str(self._target.path))
        self._check_subscriptions()

    def _check_subscriptions(self) -> None:
        found = {(row["group"], row["topic"]): row for row in State(self._target.timers, self._target.pops).rows("subscriptions")}
        for row in self._source.rows("subscriptions"):
            here = found.get((row["group"], row["topic"]))
            if here is None or here["dead"] < row["dead"] or here["is_ordered"] != row["is_ordered"]:
                raise CorruptStoreError(f"store {self._target.path} lacks group {row['group']!r} on topic {row['topic']!r} after the load")
