"""Redis: due times in a sorted set, bodies in a hash, ready ids in a list, leases in a sorted set; moved by Lua scripts."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import Any, ClassVar, Final

from rmqstore_benchmarks.peers.peer import HAND_OVER_BATCH, LEASE_MS, Durability, Timer, TimerPeer
from rmqstore_benchmarks.peers.servers import program, running, said

_CANCEL: Final = """
local cancelled = 0
for _, id in ipairs(ARGV) do
  if redis.call('ZREM', 'timers', id) == 1 then
    redis.call('HDEL', 'bodies', id)
    cancelled = cancelled + 1
  end
end
return cancelled
"""

_HAND_OVER: Final = """
local due = redis.call('ZRANGEBYSCORE', 'timers', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due > 0 then
  redis.call('ZREMRANGEBYRANK', 'timers', 0, #due - 1)
  redis.call('RPUSH', 'ready', unpack(due))
end
return #due
"""

_POP: Final = """
local ids = redis.call('LPOP', 'ready', ARGV[2])
if not ids then
  return {{}, {}}
end
local leases = {}
for at, id in ipairs(ids) do
  leases[2 * at - 1] = ARGV[1]
  leases[2 * at] = id
end
redis.call('ZADD', 'leases', unpack(leases))
return {ids, redis.call('HMGET', 'bodies', unpack(ids))}
"""


class Redis(TimerPeer):
    """One server behind a unix socket; a batch is one MULTI, a hand-over of 1000, a pop and a cancel are one script each."""

    name = "redis"
    settings: ClassVar[dict[Durability, str]] = {
        Durability.POWER_LOSS: "appendfsync always",
        Durability.PROCESS_CRASH: "appendfsync everysec",
    }
    how_to_get = "apt-get install redis-server; pip install 'rmqstore-benchmarks[peers]'"

    @classmethod
    def version(cls) -> str | None:
        server = program("redis-server")
        if server is None or not importlib.util.find_spec("redis"):
            return None
        return next((word[2:] for word in said(server, "--version").split() if word.startswith("v=")), "?")

    def start(self, stack: contextlib.ExitStack) -> None:
        redis: Any = importlib.import_module("redis")
        socket = self.directory / "redis.sock"
        options = {
            "port": "0",
            "unixsocket": str(socket),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": self.setting,
        }
        command = [program("redis-server") or "redis-server", *(word for key, value in options.items() for word in (f"--{key}", value))]
        self._client = redis.Redis(unix_socket_path=str(socket))
        stack.enter_context(running(command, self.directory, self._client.ping))
        stack.callback(self._client.close)
        self._cancel, self._hand_over, self._pop = (self._client.register_script(text) for text in (_CANCEL, _HAND_OVER, _POP))

    def schedule(self, batch: list[Timer]) -> None:
        pipe = self._client.pipeline(transaction=True)
        pipe.hset("bodies", mapping={timer.number: timer.body for timer in batch})
        pipe.zadd("timers", {timer.number: timer.due_ms for timer in batch})
        pipe.execute()

    def cancel(self, handles: list[Any]) -> int:
        return int(self._cancel(args=handles))

    def drain(self, now_ms: int) -> int:
        moved = 0
        while found := int(self._hand_over(args=[now_ms, HAND_OVER_BATCH])):
            moved += found
        return moved

    def pop_ack(self, count: int) -> list[bytes]:
        ids, bodies = self._pop(args=[self.now_ms + LEASE_MS, count])
        if ids:
            pipe = self._client.pipeline(transaction=True)
            pipe.zrem("leases", *ids)
            pipe.hdel("bodies", *ids)
            pipe.execute()
        return list(bodies)
