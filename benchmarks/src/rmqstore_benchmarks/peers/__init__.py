"""The same timers in other systems: a class for each, one workload for all; ``python -m rmqstore_benchmarks.peers``."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

from rmqstore_benchmarks.peers.in_process import ENGINES, LiteQueue, SQLite
from rmqstore_benchmarks.peers.peer import Figures, Peer, PeerError, Task
from rmqstore_benchmarks.peers.servers import Beanstalkd, PostgreSQL, Redis, RocketMQ

PEERS: Final[dict[str, type[Peer]]] = {kind.name: kind for kind in (Redis, Beanstalkd, PostgreSQL, SQLite, LiteQueue, RocketMQ)}
SYSTEMS: Final[dict[str, type[Peer]]] = PEERS | ENGINES
LIMIT_S: Final = 900
"""A measurement that takes longer is given up."""


def measure(task: Task) -> Figures:
    """Start the system, run the phases, end it; in the main thread of a process that does nothing else.

    Raises:
        PeerError: a message was lost or came twice, the system did not run, or it took longer than :data:`LIMIT_S`.
    """

    def give_up(*_: object) -> None:
        raise PeerError(f"it took longer than {LIMIT_S} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_S)
    try:
        with SYSTEMS[task.system](Path(task.directory), task.durability).started() as peer:
            return peer.measure(task)
    finally:
        signal.alarm(0)
