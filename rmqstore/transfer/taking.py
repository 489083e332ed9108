"""Taking the state of one store into an empty one that is open: planned first, then chunk by chunk, then compared by digest.

The plan is stored in the target before anything else, as its record of the source (``Adopted``), and every chunk carries a mark. So an
interrupted run leaves a target that knows what it is in the middle of, and the next run of the same dump goes on with the same plan.

Rows stay as they are, unless the widths of ticks differ: then a put that waits for its own tick gets the one of the new width, and a put
that was late keeps its tick. Such a change of order leaves the source's cursor and seal behind; the dump holds pending timers only.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.contract import Side, Support
from rmqstore.contract.state import Adopted
from rmqstore.contract.tables import ADOPTED, TIMER_TABLES
from rmqstore.digests import TableDigest, digest_rows
from rmqstore.errors import CorruptStoreError, TransferError
from rmqstore.store import Store
from rmqstore.tables import DIGESTED, TABLES, State
from rmqstore.transfer.incoming import Incoming, Progress


class Taking:
    """One source on its way into one open store."""

    def __init__(self, target: Store, source: Incoming, progress: Progress) -> None:
        self._target = target
        self._source = source
        self._progress = progress
        self._now_ms = 0

    def check(self, *, resuming: bool = False) -> None:
        """Find out before the first write whether the target can hold everything; nothing to find when this load was begun already.

        Args:
            resuming: a load of this dump that is complete is no mistake.

        Raises:
            TransferError: it cannot; the message says what.
        """
        if self._is_unfinished or (resuming and self._finished() is not None):
            return
        self._check_empty()
        self._adopted_by_source()
        self._check_capabilities()

    def run(self, *, resuming: bool = False) -> dict[str, int]:
        """Take everything in; returns the rows by table. With ``resuming``, what an earlier run has finished is left as it is.

        The target refuses its other calls as long as there is a part.

        Raises:
            TransferError: as for :meth:`check`.
            CorruptStoreError: what the target holds in the end is not what it should hold.
        """
        try:
            return self._run(resuming=resuming)
        finally:
            self._target._look_at_loads()

    def _run(self, *, resuming: bool) -> dict[str, int]:
        finished = self._finished()
        if finished is not None and (resuming or self._is_unfinished):
            # Everything was taken in and compared; perhaps one side does not know yet.
            self._adopt(finished)
            return self._source.counts()
        plan = self._unfinished()
        if plan is None:
            self.check()
            plan = self._planned()
        # Both sides know the plan before either has anything else.
        self._adopt(plan)
        expected, counts = self._take()
        self._flush()
        self._compare(expected)
        self._adopt(*map(self._brought, self._adopted_by_source()))
        self._adopt(msgspec.structs.replace(plan, is_complete=True))
        self._flush()
        return counts

    # ------------------------------------------------------------ before the first write

    def _records(self) -> list[Adopted]:
        """Return what the sides know of this very load."""
        found = (side.adopted().get(self._source.store_id) for side in (self._target.engine.timers, self._target.engine.pops))
        return [record for record in found if record is not None and record.dump_id == self._source.dump_id]

    def _unfinished(self) -> Adopted | None:
        """Return the plan of an interrupted load of the same dump, as long as rows may be missing."""
        records = self._records()
        return records[0] if records and not any(record.is_complete for record in records) else None

    def _finished(self) -> Adopted | None:
        """Return the record of a complete load of the same dump; one side may not know yet that it is complete."""
        return next((record for record in self._records() if record.is_complete), None)

    @property
    def _is_unfinished(self) -> bool:
        """Whether an earlier run of this very load was interrupted."""
        return any(not record.is_complete for record in self._records())

    def _check_empty(self) -> None:
        """Refuse a store that holds anything, or did: it may have given handles to which timers of the source would answer."""
        target = self._target
        known = {**target.engine.timers.adopted(), **target.engine.pops.adopted()}.values()
        for record in known:
            if not record.is_complete:
                raise TransferError(
                    f"store {target.path} is in the middle of a load of another dump, of store {record.broker}; go on with that one"
                )
        if holds := self._held() or [f"what is left of store {record.broker}" for record in known]:
            raise TransferError(
                f"store {target.path} is not empty, it holds {', '.join(holds)}; load {self._source.name} into an empty directory, or send "
                "its messages to this store, by send or `rmqstore send --from-file`"
            )

    def _held(self) -> list[str]:
        """Return what the target holds, in words; nothing when it is empty."""
        target = self._target
        counts = {"timers": target.pending().total, "messages": target.stats().pops.messages}
        if any(counts.values()):
            return [f"{count} {what}" for what, count in counts.items()]
        state = State(target.engine.timers, target.engine.pops)
        rows = [f"rows of {table}" for table in DIGESTED if any(len(page) for _, page in state.pages(table))]
        return rows or (["the seqs of timers that are gone"] if state.last_seq else [])

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
        infos, pop_engine, needs = self._target.engine.infos, self._target.engine.config.pop_engine, self._source.needs
        for engine, info in infos.items():
            for what, size, limit in (
                ("bodies", needs.body_bytes, info.capabilities.max_body_bytes),
                ("properties", needs.properties_bytes, info.capabilities.max_properties_bytes),
                ("keys", needs.key_bytes, info.capabilities.max_key_bytes),
            ):
                if size > limit:
                    raise TransferError(f"engine {engine!r} takes {what} of up to {limit} bytes, and {self._source.name} has one of {size}")
        if needs.fifo and infos[pop_engine].capabilities.fifo is not Support.FULL:
            raise TransferError(f"{self._source.name} has groups that pop in order, which engine {pop_engine!r} does not offer")

    # ------------------------------------------------------------ the plan

    @property
    def _keeps_ticks(self) -> bool:
        """Whether ticks, cursor and seal mean the same in the target."""
        return self._source.precision_ms == self._target.engine.timers.precision_ms

    def _planned(self) -> Adopted:
        rows = self._source.rows("timer_adopted")
        former = [Adopted.from_bytes(row["record"]) for row in rows if row["store_tag"] == self._source.store_id]
        loaded_seq = max((record.last_seq for record in self._adopted_by_source()), default=0)
        plan = Adopted(
            store_tag=self._source.store_id,
            broker=self._source.broker,
            epoch=self._source.epoch,
            last_seq=self._source.last_seq if self._source.last_seq > loaded_seq else 0,
            precisions=tuple(each for record in former for each in record.precisions),
            dump_id=self._source.dump_id,
        )
        return self._brought(plan)

    def _brought(self, record: Adopted) -> Adopted:
        """Return a record of a store whose timers come from the source: their handles may go by the ticks of the source, too."""
        if self._keeps_ticks:
            return record
        return msgspec.structs.replace(record, precisions=tuple(dict.fromkeys((*record.precisions, self._source.precision_ms))))

    def _adopt(self, *records: Adopted) -> None:
        rows = [{"store_tag": record.store_tag, "record": record.to_bytes()} for record in records]
        if rows:
            batch = pa.RecordBatch.from_pylist(rows, schema=ADOPTED)
            for side, table in ((self._target.engine.timers, "timer_adopted"), (self._target.engine.pops, "pop_adopted")):
                side.sync(side.import_state([(table, batch)], self._now_ms))

    # ------------------------------------------------------------ the rows

    def _take(self) -> tuple[dict[str, TableDigest], dict[str, int]]:
        expected = dict.fromkeys(DIGESTED, TableDigest())
        counts = dict.fromkeys(TABLES, 0)
        totals = self._source.counts()
        for table in TABLES:
            if table.endswith("_adopted"):
                continue
            for chunk, source_rows in self._source.chunks(table):
                rows = self._as_taken(table, source_rows)
                mark = f"{self._source.dump_id}/{chunk}".encode()
                self._side(table).import_state([(table, rows)], self._now_ms, [mark])
                counts[table] += len(rows)
                if table in expected:
                    expected[table] += digest_rows(rows)
                self._progress(table, counts[table], max(totals.get(table, 0), counts[table]))
        return expected, counts

    def _as_taken(self, table: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as they go into the target."""
        if table == "timer_head":
            # Of two engines the pops may know of later seqs than the timers.
            rows = _with(rows, "last_seq", pa.array([self._source.last_seq] * len(rows)))
        if self._keeps_ticks:
            return rows
        if table == "timers":
            return _with(rows, "tick", self._ticks(rows))
        order = {"timer_head": "sealed", "pop_head": "cursor"}.get(table)
        return rows if order is None else _with(rows, order, pa.array([b""] * len(rows)))

    def _ticks(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the ticks by the new width; a put without a deliver time, or a late one, keeps its own."""
        from_ms, to_ms = self._source.precision_ms, self._target.engine.timers.precision_ms
        ticks = rows.column("tick").to_numpy()
        dues = pc.fill_null(rows.column("deliver_at_ms"), -1).to_numpy(zero_copy_only=False)
        own = (dues >= 0) & (ticks == -(-dues // from_ms) * from_ms)
        return pa.array(np.where(own, -(-dues // to_ms) * to_ms, ticks))

    def _side(self, table: str) -> Side:
        return self._target.engine.timers if table in TIMER_TABLES else self._target.engine.pops

    def _flush(self) -> None:
        self._target.engine.timers.sync()
        self._target.engine.pops.sync()

    def _compare(self, expected: dict[str, TableDigest]) -> None:
        """Compare what the target holds with what was taken in."""
        found = State(self._target.engine.timers, self._target.engine.pops).digest()
        wrong = [f"{table}: {found[table].text()}, not {expected[table].text()}" for table in DIGESTED if found[table] != expected[table]]
        if wrong:
            raise CorruptStoreError(
                f"store {self._target.path} does not hold what was loaded ({'; '.join(wrong)})", file=str(self._target.path)
            )


def _with(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """Return the rows with one column replaced."""
    at = rows.schema.get_field_index(name)
    columns = [column.cast(rows.schema.field(at).type) if number == at else rows.column(number) for number in range(rows.num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
