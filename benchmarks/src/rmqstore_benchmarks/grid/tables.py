"""What a run of the grid leaves: Parquet tables under ``DIR/results``, which the report reads and anybody can query.

A *cell* is one point of the grid with its settings, a *run* one repeat of it, a *phase* one part of a run on one shard. Every table names
the run; times are ns in histograms (their buckets are below) and ms or s, as the name says, elsewhere. What a
machine or an engine cannot tell is null, never 0.

=================  ================================  =====================================================
table              a row is                          what for
=================  ================================  =====================================================
``runs``           one repeat of one cell            the point of the grid, and whether its counts are right
``phases``         one phase of a run on a shard     rates, bytes, CPU, memory
``seconds``        one second of a phase             what changes on the way: rates, stalls, memory
``histograms``     one bucket of an operation        latencies and lateness, mergeable by adding ``n``
=================  ================================  =====================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rmqstore.errors import StorePathError, TransferError

RUNS: Final = pa.schema(
    [
        ("run_id", pa.string()),  # cell_id and repeat
        ("cell_id", pa.string()),
        ("engine", pa.string()),  # name of the plug-in; "null" for Spark alone, "raw-…" for what lies under one
        ("variant", pa.string()),  # name of the engine with its settings, as in the spec: "rocksdb-separated"
        ("settings", pa.map_(pa.string(), pa.string())),
        ("workload", pa.string()),
        ("body_bytes", pa.int32()),
        ("backlog", pa.int64()),  # timers pending before the measured phases begin
        ("durability", pa.string()),  # "power_loss", "process_crash" or "nothing"
        ("shards", pa.int32()),
        ("repeat", pa.int32()),
        ("seed", pa.int64()),
        ("outcome", pa.string()),  # "ok", or "refused": an id was lost, doubled or foreign, so there are no figures; or "failed"
        ("reason", pa.string()),
        ("started_ms", pa.int64()),
        ("wall_s", pa.float64()),
    ]
)

PHASE_NAMES: Final = (
    "fill",  # the backlog is written, as fast as it goes
    "schedule",  # closed loop: timers are added on top of the backlog, by Arrow columns
    "send_lists",  # the same by lists of ``Message``
    "send_one",  # one at a time, at most 1000
    "produce_1",  # so many threads send one a call, 4000 timers together
    "produce_16",
    "produce_64",
    "cancel",
    "hand_over",  # closed loop: what is due becomes messages of its topic
    "pop_one",  # closed loop: one message at a time is popped and acked
    "pop_ack",  # closed loop: 32 at a time unless the workload says otherwise
    "pop_many",  # closed loop: 1024 at a time, as columns
    "consume_1",  # so many threads pop and ack as many messages as the backlog, until none is left
    "consume_8",
    "consume_64",
    "warm_up",  # what mixed does, as long, before it; no figure of it counts
    "mixed",  # closed loop: schedule, cancel, hand-over, pop and ack in the shares of the workload; its rate is the sustainable one
    "open_50",  # open loop at so many percent of it
    "open_80",
    "open_95",
    "roll",  # simulated time passes; nothing is due
    "cold_drain",  # cold_hand_over, then cold_pop_ack: of all, with memory limited to a quarter of the backlog's bytes
    "recover",  # open after kill -9
)

PHASES: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("shard", pa.int32()),
        ("phase", pa.string()),
        ("messages", pa.int64()),
        ("calls", pa.int64()),
        ("wall_s", pa.float64()),
        ("call_s", pa.float64()),  # of it in calls of the store; of threads at once, the sum
        ("cpu_s", pa.float64()),  # of the process, all threads
        ("user_bytes", pa.int64()),  # topics, bodies, keys and properties of ``messages``
        ("wchar_bytes", pa.int64()),
        ("device_write_bytes", pa.int64()),  # of the whole device, so of everybody on it
        ("device_read_bytes", pa.int64()),
        ("disk_bytes", pa.int64()),  # of the store after the phase, blocks in use
        ("live_bytes", pa.int64()),  # user bytes of what is kept: pending, ready and leased
        ("anon_peak_bytes", pa.int64()),
        ("compaction_bytes", pa.int64()),  # written by the engine's own compaction, where it tells
        ("slowest_thread", pa.float64()),  # consumers: messages of the thread that got least, as a share of an even part
        ("first_queue_dry", pa.float64()),  # consumers: when the last message of the first empty queue was popped, as a share of the time
        ("offered_per_s", pa.float64()),  # open loops: messages that it was to send in a second; null: as fast as it went
        ("memory_limit_bytes", pa.int64()),  # of the process and of the pages that it reads; null: none
    ]
)

SECONDS: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("shard", pa.int32()),
        ("phase", pa.string()),
        ("second", pa.int32()),  # since the phase began
        ("scheduled", pa.int64()),
        ("cancelled", pa.int64()),
        ("handed_over", pa.int64()),
        ("popped", pa.int64()),
        ("acked", pa.int64()),
        ("longest_call_ms", pa.float64()),
        ("anon_bytes", pa.int64()),
    ]
)

HISTOGRAMS: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("shard", pa.int32()),
        ("phase", pa.string()),
        # schedule, cancel, hand_over, pop, ack, from the intended start; slip: how late the load itself began a call;
        # lateness: hand-over less due time
        ("operation", pa.string()),
        ("bucket", pa.int32()),
        ("n", pa.int64()),
    ]
)

TABLES: Final = {"runs": RUNS, "phases": PHASES, "seconds": SECONDS, "histograms": HISTOGRAMS}

# ---------------------------------------------------------------- buckets

# Log-linear: 64 a power of two, so a bucket is at most 1/64 of its values wide. It is an int that sorts like its values, so histograms of
# shards and repeats merge by adding the counts of equal buckets.

Ints = NDArray[np.int64]

_SUB_BITS: Final = 6
_SUB_BUCKETS: Final = 1 << _SUB_BITS


def buckets_of(values: Ints) -> Ints:
    """Return the bucket of each value; values are 0 to 2**53, and those below 128 have a bucket each."""
    _, lengths = np.frexp(values.astype(np.float64))
    shifts = np.maximum(lengths.astype(np.int64) - 1 - _SUB_BITS, 0)
    buckets: Ints = shifts * _SUB_BUCKETS + (values >> shifts)
    return buckets


def bounds_of(buckets: Ints) -> tuple[Ints, Ints]:
    """Return the lowest value of each bucket, and the first value behind it."""
    shifts = np.maximum(buckets // _SUB_BUCKETS - 1, 0)
    lows = (buckets - shifts * _SUB_BUCKETS) << shifts
    return lows, lows + (1 << shifts)


# ---------------------------------------------------------------- reading them

RESULTS: Final = "results"
ENVIRONMENT: Final = "environment.json"

_RUN_IT: Final = "`rmqstore bench run SPEC.toml` makes them"


class Results(NamedTuple):
    """What a run of the grid left, as tables of pandas.

    Attributes:
        runs: all of them, also those that have no figures; ``settings`` are a text, ``kind`` is the design of the engine, as
            :func:`kind_of` tells it.
        phases, seconds, histograms: of all runs, with the columns of their schemas; figures are made of the good runs alone.
        environment: machine, versions and command, as the harness wrote them; empty when it wrote none.
    """

    runs: pd.DataFrame
    phases: pd.DataFrame
    seconds: pd.DataFrame
    histograms: pd.DataFrame
    environment: dict[str, Any]

    @property
    def good(self) -> pd.DataFrame:
        """The runs that have figures."""
        return self.runs[self.runs.outcome == "ok"]


_KINDS: Final = {"wheel": ("wheel.roll", "reference"), "rocksdb": ("rocksdb.values", "inline")}
"""By engine, the setting that matters to a design, and its default."""


def kind_of(engine: str, settings: Iterable[tuple[str, str]]) -> str:
    """Return the design of an engine: "copy" or "reference" for the wheel, "inline" or "separated" for RocksDB, else empty."""
    name, default = _KINDS.get(engine, ("", ""))
    return dict(settings).get(name, default)


def read(directory: Path) -> Results:
    """Return what a run of the grid left in ``directory``.

    Raises:
        StorePathError: there are no results.
        TransferError: a table is no Parquet or has other columns, or the environment is no JSON object.
    """
    place = directory / RESULTS
    if not place.is_dir():
        raise StorePathError(f"{directory} holds no results of a benchmark: {place} is missing; {_RUN_IT}")
    tables = {name: _table(place, name).to_pandas() for name in TABLES}
    runs = tables["runs"]
    if runs.empty:
        raise StorePathError(f"{place} names no run; {_RUN_IT}")
    kinds = [kind_of(*each) for each in zip(runs.engine, runs.settings, strict=True)]
    settings = [", ".join(f"{key} = {value}" for key, value in sorted(pairs)) for pairs in runs.settings]
    runs = runs.assign(settings=settings, kind=kinds, reason=runs.reason.fillna(""))
    return Results(runs, tables["phases"], tables["seconds"], tables["histograms"], _environment(directory / ENVIRONMENT))


def _table(place: Path, name: str) -> pa.Table:
    """Return one table, checked against its schema."""
    schema, found = TABLES[name], place / f"{name}.parquet"
    if not found.exists():
        raise StorePathError(f"{place} holds no table {name}; {_RUN_IT}")
    try:
        return pq.read_table(found).select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise TransferError(f"{found} is not the table {name} of this version ({error}); run the benchmark again") from error


def _environment(file: Path) -> dict[str, Any]:
    """Return what the harness wrote of the machine."""
    if not file.exists():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise TransferError(f"{file} must hold a JSON object ({error}); remove it, or run the benchmark again") from error
