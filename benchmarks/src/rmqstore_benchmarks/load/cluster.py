"""A cluster of processes on this machine, of which a load test kills some."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_PATIENCE_S: Final = 60.0


class StandaloneCluster:
    """A standalone master and ``workers`` workers on 127.0.0.1; a context manager, behind which no process is left.

    Attributes:
        master: URL for :func:`rmqstore.spark.sessions.session`.
    """

    def __init__(self, workers: int = 2, *, cores: int = 1, memory_mib: int = 1024) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="rmqstore-cluster-", ignore_cleanup_errors=True)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers, self._cores, self._memory_mib = workers, cores, memory_mib
        self.master = ""

    def __enter__(self) -> Self:
        try:
            port = _free_port()
            self.master = f"spark://127.0.0.1:{port}"
            self._start("Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(_free_port()))
            _wait_for(port)
            for _ in range(self._workers):
                self.add_worker()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def add_worker(self) -> None:
        """Start one more worker and wait until it listens."""
        port = _free_port()
        self._start(
            "Worker",
            *("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(_free_port())),
            *("--cores", str(self._cores), "--memory", f"{self._memory_mib}M"),
            *("--work-dir", str(Path(self._scratch.name, f"worker-{len(self._processes)}"))),
            self.master,
        )
        _wait_for(port)

    def kill_worker(self, number: int = 0) -> None:
        """Kill worker ``number`` and its executors with SIGKILL, as a machine that is gone."""
        self._kill(self._processes[1 + number])

    def close(self) -> None:
        """End every process; idempotent."""
        while self._processes:
            self._kill(self._processes.pop())
        self._scratch.cleanup()

    def _start(self, role: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": self._scratch.name,
            "PYSPARK_PYTHON": sys.executable,
            "TZ": "UTC",
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}", *arguments]
        with open(Path(self._scratch.name, f"{role}-{len(self._processes)}.log"), "wb") as log:
            # A session of its own, so that executors, which are its children, can be ended with it.
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self._scratch.name, start_new_session=True)
            )

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    """Return when somebody listens at ``port``.

    Raises:
        TimeoutError: none does for a minute.
    """
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise TimeoutError(f"no Spark process listens at 127.0.0.1:{port} after {_PATIENCE_S:.0f} s")
