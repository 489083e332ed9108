"""The same timers in other systems: one module for each, one workload for all; ``python -m rmqstore_benchmarks.peers``."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

from rmqstore_benchmarks.peers.beanstalkd import Beanstalkd
from rmqstore_benchmarks.peers.ours import ENGINES
from rmqstore_benchmarks.peers.peer import Figures, Peer, PeerError, Task
from rmqstore_benchmarks.peers.postgresql import PostgreSQL
from rmqstore_benchmarks.peers.redis_server import Redis
from rmqstore_benchmarks.peers.rocketmq import RocketMQ
from rmqstore_benchmarks.peers.sqlite import LiteQueue, SQLite

PEERS: Final[dict[str, type[Peer]]] = {kind.name: kind for kind in (Redis, Beanstalkd, PostgreSQL, SQLite, LiteQueue, RocketMQ)}


def system(name: str) -> type[Peer]:
    """Return a peer, or one of our engines."""
    return PEERS[name] if name in PEERS else ENGINES[name]


def measure(task: Task) -> Figures:
    """Start the system, run the phases, end it.

    Raises:
        PeerError: a message was lost or came twice, or the system did not run.
    """
    with system(task.system)(Path(task.directory), task.durability).started() as peer:
        return peer.measure(task)


LIMIT_S: Final = 900
"""A measurement that takes longer is given up."""


def measure_alone(task: Task) -> Figures:
    """Do the same within :data:`LIMIT_S`, in a process that does nothing else.

    Raises:
        PeerError: it took longer, or as for :func:`measure`.
    """

    def give_up(*_: object) -> None:
        raise PeerError(f"it took longer than {LIMIT_S} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_S)
    return measure(task)
