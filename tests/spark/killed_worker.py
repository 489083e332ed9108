"""A program: a standalone cluster of two workers, of which one is killed while its task writes a shard; prints what the job reports."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

import rmqstore
from rmqstore import spark as rmqspark
from rmqstore.spark import Dataset, jobs, running
from rmqstore.spark.jobs import Job
from rmqstore.spark.sessions import session
from rmqstore.spark.standalone import StandaloneCluster

NOW_MS = 1_700_000_000_000
PATIENCE_S = 120


def hanging_once(path: str, job_id: str, news: str) -> Any:
    """Return work that takes a shard in; the first task that has sent a chunk tells where it runs, and hangs until it is killed."""

    def work(shard: int) -> Any:
        import os
        import signal

        from rmqstore.spark.ingest import ingest_shard

        send_batch = rmqstore.Store.send_batch

        def sending(store: Any, *given: Any, **named: Any) -> Any:
            answer = send_batch(store, *given, **named)
            try:
                os.mkfifo(news + ".taken")  # one process alone can make it
            except FileExistsError:
                return answer
            with open(news, "w", encoding="utf-8") as told:
                told.write(str(Path.cwd()))
            signal.pause()
            return answer

        rmqstore.Store.send_batch = sending  # type: ignore[method-assign]
        try:
            return ingest_shard(Job(Dataset.open(path), job_id), shard)
        finally:
            rmqstore.Store.send_batch = send_batch  # type: ignore[method-assign]

    return work


def main(root: Path, engine: str, rows: int) -> None:
    """Schedule ``rows`` timers, kill the worker that hangs, and print the report."""
    import os

    news = root / "news"
    os.mkfifo(news)
    jobs.CHUNK_ROWS = 500
    running._ingesting = lambda job, wait_ms: hanging_once(str(job.dataset.path), job.id, str(news))
    with StandaloneCluster(2, memory_mib=640) as cluster:
        settings = {"spark.executor.memory": "512m", "spark.cores.max": "2"}

        def kill() -> None:
            # Opening the pipe waits for the task that hangs; its directory lies in that of its worker.
            where = Path(news.read_text(encoding="utf-8"))
            number = next(int(part.removeprefix("worker-")) for part in where.parts if part.startswith("worker-"))
            cluster.kill_worker(number - 1)

        with session(cluster.master, quick=True, settings=settings) as spark:
            killer = threading.Thread(target=kill, daemon=True)
            killer.start()
            timers = spark.range(0, rows, 1, 4).selectExpr(
                "'orders' AS topic",
                "CAST(CAST(id AS string) AS binary) AS body",
                "array(CAST(id AS string)) AS keys",
                f"{NOW_MS}L + 1000 * (id + 1) AS deliver_at_ms",
            )
            report = rmqspark.schedule(timers, root / "data", shards=2, engine=engine, job_id="load", now_ms=NOW_MS)
            killer.join(PATIENCE_S)
            sys.stdout.write(msgspec.json.encode({"report": report, "killed": not killer.is_alive()}).decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
