"""Use what is installed, as a stranger would: run with ``python -I``, in an empty directory."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from importlib import metadata
from pathlib import Path

import rmqstore


def main() -> None:
    """Raise at the first thing that is wrong."""
    assert list(Path.cwd().iterdir()) == []
    command = Path(sys.executable).with_name("rmqstore")
    listed = json.loads(subprocess.run([command, "engines", "--json"], capture_output=True, text=True, check=True).stdout)
    assert len(listed) >= 3, listed
    for entry in listed:
        assert entry["state"] == "ok", entry
        assert Path(str(metadata.distribution(entry["distribution"]).locate_file(""))).is_relative_to(sys.prefix), entry
        use(entry["name"], is_durable=entry["capabilities"]["durability"]["sync"]["put"] != "NONE")
    assert Path(rmqstore.__file__).is_relative_to(sys.prefix)
    judge("sqlite", command)


def judge(engine: str, command: Path) -> None:
    """Run the conformance suite on an engine, and read its report."""
    run = subprocess.run([command, "conformance", engine, "--report", "report.json", "--report", "report.html"], check=False, text=True)
    (report,) = json.loads(Path("report.json").read_text())["reports"]
    assert run.returncode == 0, report["headline"]
    assert report["reached"] == "core", report["headline"]
    assert report["header"]["versions"]["rmqstore-example-sqlite"], report["header"]
    assert len(report["clauses"]) >= 40, report["headline"]


def use(engine: str, is_durable: bool) -> None:
    """Send, cancel, pop, ack; and find a timer again after a reopen."""
    directory = Path(engine)
    with rmqstore.open(directory, engine=engine) as store:
        cancelled = store.send(rmqstore.Message("orders", b"never"), delay=timedelta(hours=1))
        store.send(rmqstore.Message("orders", b"later"), delay=timedelta(hours=2))
        assert store.cancel(cancelled.handle) is rmqstore.CancelOutcome.CANCELLED
        store.send(rmqstore.Message("orders", b"now", keys=("42",)))
        (message,) = store.pop("orders", group="billing", max_messages=32, invisible=timedelta(seconds=60), wait=timedelta(seconds=20))
        assert message.body == b"now"
        assert store.ack(message) is rmqstore.AckOutcome.ACKED
    if is_durable:
        with rmqstore.open(directory) as store:
            assert store.pending().total == 1


if __name__ == "__main__":
    main()
