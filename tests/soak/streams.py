"""``make soak-streams``: rows go through streams of Spark, in and out, while all that takes part is killed (docs/crash-tools.md).

One query writes the rows into a data set of two shards, of which the first is served by ``rmqstore serve``; a second one reads them by
offsets, a third one pops them as a group. They run side by side, in executors that are processes of their own. Again and again one of
these is killed: the driver with its JVM and executors, an executor, a Python process of an executor, the owner of the first shard. In the
end each row must be there once in the data set, once in what was read, and once in what was popped.

A row in four is a timer that is due soon. ``python -m tests.soak.streams queries ROOT`` is the driver.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import rmqstore.spark
from rmqstore.spark import Dataset
from rmqstore.spark.sessions import session
from rmqstore_conformance.stores import own_environment

_ROOT: Final = Path(__file__).parents[2]
TOPIC: Final = "orders"
FILES: Final = 20
_SOON_MS: Final = 60_000
_QUERIES: Final = ("written", "read", "popped")
_KINDS: Final = ("driver", "executor", "Python process", "owner")
_CLUSTER: Final = "local-cluster[2,1,1024]"
_PROCESSES: Final = {"executor": b"CoarseGrainedExecutorBackend", "Python process": b"pyspark.daemon"}
_PATIENCE_S: Final = 40.0
_END_S: Final = 1800.0


# ---------------------------------------------------------------- the driver


def queries(root: Path) -> None:
    """Run the three queries until every row came through."""
    with session(_CLUSTER, quick=True) as spark:
        rmqstore.spark.register(spark)
        data = str(root / "data")

        def started(name: str, writer: Any, path: str) -> Any:
            options = {"checkpointLocation": str(root / f"checkpoint-{name}"), "path": path}
            return writer.options(**options).queryName(name).trigger(availableNow=True).start()

        def taken(name: str, **options: str) -> Any:
            limit = 2 * made.count() // FILES
            reader = spark.readStream.format("rmqstore").options(view="messages", topic=TOPIC, maxRowsPerBatch=limit, **options)
            return started(name, reader.load(data).select("body").writeStream.format("parquet"), str(root / name))

        made = spark.read.parquet(str(root / "made"))
        rows = spark.readStream.schema(made.schema).option("maxFilesPerTrigger", 1).parquet(str(root / "made"))
        writing = started("written", rows.writeStream.format("rmqstore"), data)
        is_through = False
        while not is_through:
            # Looked at before the others begin, so that their last pass meets everything.
            is_through = not writing.isActive and not spark.read.format("rmqstore").load(data).count()
            for query in (taken("read"), taken("popped", group="billing")):
                query.awaitTermination()
        writing.awaitTermination()


# ---------------------------------------------------------------- what kills


class StreamSoak:
    """A run, in a directory of its own.

    Attributes:
        wrong: what is wrong, a line each.
        strikes: what was killed, and how often.
    """

    def __init__(self, root: Path, rows: int, engine: str, seed: str, strikes: int, say: Callable[[str], None]) -> None:
        self._root, self._rows, self._say = root, rows, say
        self._chance = random.Random(seed)
        self._left = strikes
        self._dataset = Dataset.create(root / "data", shards=2, engine=engine)
        self._driver: subprocess.Popen[bytes] | None = None
        self._owner: subprocess.Popen[bytes] | None = None
        self._began_s = time.monotonic()
        self.strikes: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        """Make the rows, let them through, strike, and look for what is wrong."""
        self._make()
        try:
            self._play()
        finally:
            for process in (self._driver, self._owner):
                _kill(process)
        if not self.wrong:
            self._audit()

    def _make(self) -> None:
        share, soon_ms = self._rows // FILES, time.time_ns() // 1_000_000 + _SOON_MS
        (self._root / "made").mkdir()
        for file in range(FILES):
            numbers = range(file * share, (file + 1) * share)
            columns = {
                "topic": pa.array([TOPIC] * share),
                "body": pa.array([b"%d" % number for number in numbers]),
                "keys": pa.array([[str(number)] for number in numbers]),
                "deliver_at_ms": pa.array([soon_ms + number % 20_000 if number % 4 == 0 else None for number in numbers], pa.int64()),
            }
            pq.write_table(pa.table(columns), self._root / "made" / f"{file:02}.parquet")
        self._rows = share * FILES
        for shard in self._dataset.shards:
            with self._dataset.open_shard(shard) as store:
                store.topics.create(TOPIC)
                store.pop(TOPIC, "witness")  # a group that never acks, for which the topic is kept whole

    # ------------------------------------------------------------ processes

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with open(self._root / "log", "ab") as log:
            # A session of its own, so that a kill meets what it started as well.
            return subprocess.Popen(
                [sys.executable, "-m", *command], stdout=log, stderr=log, cwd=_ROOT, env=own_environment(), start_new_session=True
            )

    def _play(self) -> None:
        until_s = self._began_s + _END_S
        seen, next_s = 0, 0.0
        while self._driver is None or self._driver.poll() != 0:
            if self._owner is None or self._owner.poll() is not None:
                self._owner = self._start("rmqstore", "serve", str(self._dataset.shard_path(0)))
            if self._driver is None or self._driver.poll() is not None:
                if self._driver is not None:
                    self.strikes["driver that ended by an error"] += 1
                    _kill(self._driver)
                self._driver = self._start("tests.soak.streams", "queries", str(self._root))
                next_s = time.monotonic() + _PATIENCE_S
            if time.monotonic() > until_s:
                self.wrong.append(f"not through within {_END_S:.0f} s; see the log")
                return
            # Something went on since the last one, so that a run comes to its end.
            if self._left and ((done := self._done()) > seen or time.monotonic() > next_s):
                time.sleep(self._chance.uniform(0, 1.5))
                self._strike()
                seen, next_s = done, time.monotonic() + _PATIENCE_S
            time.sleep(0.05)

    def _done(self) -> int:
        """Return how many micro-batches the queries have committed; Spark keeps the last hundred of each."""
        commits = [(self._root / f"checkpoint-{name}" / "commits") for name in _QUERIES]
        return sum(max((int(path.name) + 1 for path in folder.glob("[0-9]*")), default=0) for folder in commits)

    def _strike(self) -> None:
        fewest = min(self.strikes[f"{kind} killed"] for kind in _KINDS)
        kind = self._chance.choice([kind for kind in _KINDS if self.strikes[f"{kind} killed"] == fewest])
        if kind == "driver":
            _kill(self._driver)
            self._driver = None
        elif kind == "owner":
            _kill(self._owner)
            self._owner = None
        elif found := self._found(_PROCESSES[kind]):
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(found), signal.SIGKILL)
        else:
            return
        self._left -= 1
        self.strikes[f"{kind} killed"] += 1
        took_s = time.monotonic() - self._began_s
        self._say(f"{took_s:.0f} s, {self._done()} micro-batches: {kind} killed")

    def _found(self, word: bytes) -> list[int]:
        """Return the processes of the driver's session that have a word in their command line."""
        assert self._driver is not None
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                if os.getsid(int(entry.name)) == self._driver.pid and word in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    # ------------------------------------------------------------ the end

    def _audit(self) -> None:
        with session(quick=True) as spark:
            rmqstore.spark.register(spark)
            read = partial(rmqstore.spark.read, spark, self._dataset.path)
            found = {"stored": read("messages", columns=["body"])}
            found |= {name: spark.read.parquet(str(self._root / name)) for name in ("read", "popped")}
            for what, frame in found.items():
                numbers = (int(row.body) for row in frame.select("body").toLocalIterator())
                self.wrong += [f"{what}: {fault}" for fault in faults(numbers, self._rows)]
            lag = read("lag").where("group = 'billing'").select("ready", "in_flight", "retry", "dead").distinct().collect()
            self.wrong += [f"lag of the group: {lag}"] if lag != [(0, 0, 0, 0)] else []

    def table(self) -> str:
        """Return the summary."""
        took_s = time.monotonic() - self._began_s
        counts = {"rows": self._rows, "micro-batches": self._done(), **self.strikes}
        lines = [f"| {what} | {number:,} |" for what, number in {**counts, "wrong": len(self.wrong)}.items()]
        return "\n".join([f"| {self._dataset.manifest.engine} | {took_s:.0f} s |", "| --- | ---: |", *lines])


def faults(numbers: Iterable[int], rows: int) -> list[str]:
    """Say what is wrong with numbers of rows that should be 0 to ``rows - 1``, each once."""
    times = Counter(numbers)
    unknown = sum(not 0 <= number < rows for number in times)
    counts = {"missing": rows - (len(times) - unknown), "there twice": sum(count > 1 for count in times.values()), "unknown": unknown}
    return [f"{count:,} rows {fault}" for fault, count in counts.items() if count]


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def soak(rows: int, engine: str, seed: str, strikes: int, say: Callable[[str], None] = print) -> list[str]:
    """Run over one engine; returns what is wrong. The directory goes afterwards, unless something is."""
    root = Path(tempfile.mkdtemp(prefix=f"rmqstore-soak-streams-{engine}-"))
    run = StreamSoak(root, rows, engine, seed, strikes, say)
    run.run()
    say(run.table())
    if run.wrong:
        say("\n".join([f"WRONG with seed {seed}; all is kept in {root}:", *run.wrong]))
    else:
        shutil.rmtree(root)
    return run.wrong


def main() -> None:
    """Run over each engine, and exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=["wheel"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--strikes", type=int, default=16, help="kills, of the four kinds in turn")
    parser.add_argument("--seed", default=None, help="another one each time by default")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    seed = options.seed or str(random.SystemRandom().randrange(10**9))
    print(f"seed {seed}", flush=True)
    wrong = [soak(options.rows, engine, seed, options.strikes, lambda line: print(line, flush=True)) for engine in options.engines]
    print("something is wrong, see above" if any(wrong) else "every row is accounted for")
    sys.exit(any(wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == ["queries"]:
        queries(Path(sys.argv[2]))
    else:
        main()
