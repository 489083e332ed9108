"""A program: `rmqstore load-test` with the arguments given, whose Spark is killed by a task that has sent a chunk of the second round."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rmqstore.cli import main
from rmqstore_benchmarks.load import run
from rmqstore_benchmarks.load.plan import Plan

_KILLED_IN = 1


class DeadlyRound(run._Round):
    """A round; its tasks kill the JVM that their worker's parent is a child of, behind the second chunk."""

    def __call__(self, plan: Plan, number: int) -> Iterator[Any]:
        if self._round != _KILLED_IN:
            yield from super().__call__(plan, number)
            return
        import os
        import signal

        import rmqstore

        jvm = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        send_batch, sent = rmqstore.Store.send_batch, []

        def sending(store: Any, *given: Any, **named: Any) -> Any:
            answer = send_batch(store, *given, **named)
            sent.append(answer)
            if len(sent) == 2:
                os.kill(jvm, signal.SIGKILL)
            return answer

        rmqstore.Store.send_batch = sending  # type: ignore[method-assign]
        try:
            yield from super().__call__(plan, number)
        finally:
            rmqstore.Store.send_batch = send_batch  # type: ignore[method-assign]


if __name__ == "__main__":
    run._Round = DeadlyRound  # type: ignore[misc]
    main(["load-test", *sys.argv[1:]])
