"""The systems that can be measured, by name."""

from __future__ import annotations

from typing import Final

from rmqstore_benchmarks.peers.beanstalkd import Beanstalkd
from rmqstore_benchmarks.peers.lite_queue import LiteQueue
from rmqstore_benchmarks.peers.ours import ENGINES
from rmqstore_benchmarks.peers.peer import Peer
from rmqstore_benchmarks.peers.postgresql import PostgreSQL
from rmqstore_benchmarks.peers.redis_server import Redis
from rmqstore_benchmarks.peers.rocketmq import RocketMQ
from rmqstore_benchmarks.peers.sqlite import SQLite

PEERS: Final[dict[str, type[Peer]]] = {kind.name: kind for kind in (Redis, Beanstalkd, PostgreSQL, SQLite, LiteQueue, RocketMQ)}


def system(name: str) -> type[Peer]:
    """Return a peer, or one of our engines."""
    return PEERS[name] if name in PEERS else ENGINES[name]
