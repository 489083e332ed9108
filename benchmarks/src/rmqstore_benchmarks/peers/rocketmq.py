"""RocketMQ's own TimerMessageStore, without a broker: a Java driver over its published jars, built by Maven when it is first needed."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import ClassVar, Final

from rmqstore_benchmarks.peers.peer import Durability, Figures, Peer, PeerError, Task
from rmqstore_benchmarks.peers.servers import program, said

DRIVER: Final = Path(__file__).parents[3] / "peers" / "rocketmq"
_JAVA: Final = 17
_WARM_UP: Final = 30_000
_PUTS_PER_S: Final = 8_000
"""Far below what is measured: how long after the start of the puts the timers of a drain become due."""
_LIMIT_S: Final = 600
_OPENED: Final = ("java.nio", "jdk.internal.ref", "sun.nio.ch")
_HEAD: Final = struct.Struct(">qi")


class RocketMQ(Peer):
    """A DefaultMessageStore with its file wheel. Pop and ack are the broker's, and a cancel is one more timer without an answer: left out.

    Its clock cannot be set: timers with the drawn delays are scheduled; others become due while its dequeue threads are held, and are
    handed over when these are let go.
    """

    name = "rocketmq"
    settings: ClassVar[dict[Durability, str]] = {Durability.POWER_LOSS: "SYNC_FLUSH", Durability.PROCESS_CRASH: "ASYNC_FLUSH"}
    how_to_get = "apt-get install maven openjdk-17-jdk-headless, in a checkout of this repository"

    @classmethod
    def version(cls) -> str | None:
        if not (program("mvn") and program("javac") and (DRIVER / "pom.xml").exists() and _java_version() >= _JAVA):
            return None
        found = re.search(r"<rocketmq.version>(.*)</", (DRIVER / "pom.xml").read_text(encoding="utf-8"))
        return found[1] if found else "?"

    def start(self, stack: ExitStack) -> None:
        _build()

    def measure(self, task: Task) -> Figures:
        spent = self._run(task, "schedule")
        figures = {"schedule": task.timers / spent["schedule"], "placed": task.timers / spent["placed"]}
        if task.distribution == "constant":
            figures["drain"] = task.timers / self._run(task, "drain")["drain"]
        return figures

    def _run(self, task: Task, phase: str) -> dict[str, float]:
        place = self.directory / phase
        place.mkdir()
        timers = [(timer.due_ms - batch.now_ms, timer.body) for batch in task.batches() for timer in batch.timers]
        if phase == "drain":
            delay_ms = 5000 + 1000 * task.timers // _PUTS_PER_S
            timers = [(delay_ms, body) for _, body in timers]
        warm = timers[:_WARM_UP]
        with (file := place / "timers").open("wb") as out:
            out.write(struct.pack(">i", len(warm) + len(timers)))
            out.writelines(_HEAD.pack(delay_ms, len(body)) + body for delay_ms, body in [*warm, *timers])
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        jars = f"{DRIVER / 'target' / 'classes'}:{DRIVER / 'target' / 'lib'}/*"
        # RocketMQ writes logs below the home directory.
        command = ["java", "-Xms2g", "-Xmx2g", f"-Duser.home={place}", *opened, "-cp", jars, "rmqstore.peers.TimerStoreDriver"]
        given = [str(place / "store"), self.settings[self.durability], str(task.batch), phase, str(file), str(len(warm))]
        with (place / "errors").open("w+") as errors:
            done = subprocess.run([*command, *given], stdout=subprocess.PIPE, stderr=errors, text=True, check=False, timeout=_LIMIT_S)
            if done.returncode:
                errors.seek(0)
                raise PeerError(f"the driver of RocketMQ ended with {done.returncode}: {errors.read()[-500:]}")
        spent: dict[str, float] = json.loads(done.stdout)
        return spent


@cache
def _java_version() -> int:
    found = re.match(r"javac (\d+)", said("javac", "-version"))
    return int(found[1]) if found else 0


def _build() -> None:
    """Build the driver, unless it was built since its last change."""
    sources = [*DRIVER.glob("src/**/*.*"), DRIVER / "pom.xml"]
    stamp = DRIVER / "target" / "built"
    if stamp.exists() and all(source.stat().st_mtime <= stamp.stat().st_mtime for source in sources):
        return
    done = subprocess.run(["mvn", "-q", "-B", "process-classes"], cwd=DRIVER, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    if done.returncode:
        raise PeerError(f"mvn could not build {DRIVER}: {done.stdout[-500:]}")
    stamp.touch()
