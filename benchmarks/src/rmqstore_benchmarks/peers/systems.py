"""The systems by name, and one measurement of one: ``python -m rmqstore_benchmarks.peers.systems '<JSON of a Task>'`` prints JSON."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

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


LIMIT_S: Final = 900
"""A measurement that takes longer is given up."""


def measure(task: Task) -> Figures:
    """Start the system, run the phases, end it.

    Raises:
        PeerError: a message was lost or came twice, or the system did not run.
    """
    with system(task.system)(Path(task.directory), task.durability) as peer:
        return peer.measure(task)


def _give_up(*_: object) -> None:
    raise PeerError(f"it took longer than {LIMIT_S} s")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(LIMIT_S)
    try:
        print(json.dumps(measure(msgspec.json.decode(sys.argv[1], type=Task))))
    except PeerError as failure:
        sys.exit(str(failure))
