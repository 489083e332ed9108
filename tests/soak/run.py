"""``make soak``: tries to lose or double a message of a store that many processes use while they are killed (docs/crash-tools.md).

Producers and workers use a store, first through ``rmqstore serve``, then, for the last third, sharing it. At random moments one of them is
killed, the server is killed or ended, its clock jumps, or the disk is full for a while. In the end the store is drained, and every message
accounted for, by the ledgers that the processes wrote.

The seed decides who does what and what is struck when; how the processes get on with it, the machine decides. So a run with the same seed
is much like the first one, not the same.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import rmqstore
from rmqstore import Store
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.store.directory import SOCKET_NAME
from rmqstore_conformance.faults.filling import SmallDisk, small_disk
from rmqstore_conformance.stores import own_environment
from tests.soak.actors import GROUP, TOPICS, MovedClock, opened
from tests.soak.audit import Account

_ROOT: Final = Path(__file__).parents[2]
_CLIENTS: Final = {"producer": 3, "worker": 2, "popper": 2}
_QUEUES: Final = 4
_STRIKE_S: Final = 1.0
_PROGRESS_S: Final = 5.0
_SHARED: Final = 1 / 3
_END_S: Final = 60.0
_DRAIN_S: Final = 120.0
_JUMP_MS: Final = 40_000
_FARTHEST_MS: Final = 300_000
"""A server whose clock jumps by twenty minutes within a call that is made again may forget the call (docs/server.md)."""


class Soak:
    """A run over one engine, in a directory of its own.

    Attributes:
        wrong: what is wrong, a line each.
        strikes: what was done to the processes and the disk, and how often.
    """

    def __init__(self, engine: str, seconds: float, seed: str, root: Path, disk: SmallDisk | None, say: Callable[[str], None]) -> None:
        self._engine, self._seconds, self._seed, self._disk, self._say = engine, seconds, seed, disk, say
        self._ledgers = root / "ledgers"
        self._ledgers.mkdir()
        self.store = root / "store" if disk is None else disk.store
        self._chance = random.Random(f"{seed}/{engine}")
        self._clock = MovedClock(self._ledgers)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._full_until_s = 0.0
        self._met_full = False  # the server that runs did, and may have ended by it
        self._way = "served"
        self._account = Account(self._ledgers)
        self.strikes: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        """Make the store, use it, strike, drain it, and look for what is wrong."""
        with rmqstore.open(self.store, engine=self._engine, precision_ms=100, services=False) as store:
            store.groups.set(GROUP, max_retries=1000)
            for topic in TOPICS:
                store.topics.create(topic, queues=_QUEUES)
            store.pop(TOPICS[0], "witness")  # a group that never acks, for which all of this topic is kept
        try:
            for self._way, share in (("served", 1 - _SHARED), ("shared", _SHARED)):
                self._play(self._seconds * share)
                self._drain()
        finally:
            for name in list(self._running):
                self._kill(name)
        self._audit()

    # ------------------------------------------------------------ processes

    def _start(self, role: str) -> None:
        name = f"{role}-{self._way}-{self._started}"
        self._started += 1
        self._met_full = self._full_until_s > 0 if role == "server" else self._met_full
        command = [sys.executable, "-m", "tests.soak.actors", role, name, str(self.store), str(self._ledgers), self._seed]
        with open(self._ledgers / f"{name}.log", "wb") as log:
            started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=_ROOT, env=own_environment())
        self._running[name] = started

    def _named(self, *roles: str) -> list[str]:
        return [name for name in self._running if name.partition("-")[0] in roles]

    def _kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.communicate()

    def _end(self, *roles: str) -> None:
        """Let processes end by themselves, a server by SIGTERM, the others when their stdin ends."""
        ending = {name: self._running.pop(name) for name in self._named(*roles)}
        for name, process in ending.items():
            process.terminate() if name.startswith("server") else process.stdin.close()  # type: ignore[union-attr]
        until_s = time.monotonic() + _END_S
        for name, process in ending.items():
            try:
                self._check_end(name, process.wait(max(until_s - time.monotonic(), 0.1)))
            except subprocess.TimeoutExpired:
                self.wrong.append(f"{name} did not end within {_END_S:.0f} s")
            finally:
                process.kill()
                process.communicate()

    def _check_end(self, name: str, code: int) -> None:
        if code and name.startswith("server") and self._met_full:
            self.strikes["server ended by a full disk"] += 1
        elif code and code != -signal.SIGTERM:  # which ends a server that is still importing
            self.wrong.append(f"{name} ended by itself with {code}: {self._log(name)[-500:]}")

    def _log(self, name: str) -> str:
        return (self._ledgers / f"{name}.log").read_text(errors="replace").strip()

    def _replace_ended(self) -> None:
        for name, process in list(self._running.items()):
            if (code := process.poll()) is not None:
                self._kill(name)
                self._check_end(name, code)
                self._start(name.partition("-")[0])

    # ------------------------------------------------------------ strikes

    def _play(self, seconds: float) -> None:
        for role, number in {**({"server": 1} if self._way == "served" else {}), **_CLIENTS}.items():
            for _ in range(number):
                self._start(role)
        self._await_clients()
        begun_s = now_s = time.monotonic()
        strike_s, progress_s, sent = now_s + _STRIKE_S, now_s + _PROGRESS_S, 0
        patience_s = 10.0
        while (now_s := time.monotonic()) < begun_s + seconds:
            if self._full_until_s and now_s > self._full_until_s:
                self._free()
            if now_s > strike_s and (self._sent() > sent or now_s > strike_s + patience_s):
                self._strike()
                strike_s = time.monotonic() + self._chance.expovariate(1 / _STRIKE_S)
                # Mostly the store works again before the next one, however slow the machine is; at times it is struck while it recovers.
                sent, patience_s = self._sent(), self._chance.choice((0.0, 10.0, 10.0))
            if now_s > progress_s:
                self._say(f"{self._engine}, {self._way}, {now_s - begun_s:.0f} s: {self._progress()}")
                progress_s = now_s + _PROGRESS_S
            self._replace_ended()
            time.sleep(0.05)

    def _await_clients(self) -> None:
        until_s = time.monotonic() + _END_S
        while not all((self._ledgers / f"{name}.ledger").exists() for name in self._named(*_CLIENTS)):
            self._replace_ended()
            if time.monotonic() > until_s:
                self.wrong.append(f"not all clients reached the store within {_END_S:.0f} s")
                return
            time.sleep(0.05)

    def _strike(self) -> None:
        strikes = {self._strike_client: 5, self._strike_server: 5, self._strike_clock: 2, self._strike_disk: 1}
        if self._way == "shared":  # who owns the store is a client, too
            del strikes[self._strike_server]
        if self._disk is None or self._full_until_s:
            del strikes[self._strike_disk]
        (strike,) = self._chance.choices(list(strikes), list(strikes.values()))
        strike()

    def _strike_client(self) -> None:
        name = self._chance.choice(self._named(*_CLIENTS))
        role = name.partition("-")[0]
        self._kill(name)
        self.strikes[f"{role} killed"] += 1
        self._start(role)

    def _strike_server(self) -> None:
        (name,) = self._named("server")
        if self._chance.random() < 0.2:
            self._running[name].terminate()
            self._end("server")
            self.strikes["server ended"] += 1
        else:
            self._kill(name)
            self.strikes["server killed"] += 1
        time.sleep(self._chance.choice((0.0, 0.0, 1.0)))
        self._start("server")

    def _strike_clock(self) -> None:
        offset_ms = self._clock.offsets_ms()[0] + self._chance.randint(-_JUMP_MS, _JUMP_MS)
        self._clock.move(max(-_FARTHEST_MS, min(_FARTHEST_MS, offset_ms)))
        self.strikes["clock moved"] += 1

    def _strike_disk(self) -> None:
        assert self._disk is not None
        self._met_full = True
        self._full_until_s = time.monotonic() + self._chance.uniform(0.2, 1.5)
        self._disk.fill()
        self.strikes["disk filled"] += 1

    def _free(self) -> None:
        self._full_until_s = 0.0
        if self._disk is not None:
            self._disk.free()

    # ------------------------------------------------------------ the end

    def _drain(self) -> None:
        """End the producers, and let the workers do what is left."""
        self._free()
        self._clock.move(self._clock.offsets_ms()[1])  # what was put under a later clock waits until it is there again
        self._end("producer")
        until_s = time.monotonic() + _DRAIN_S
        with opened(self.store, self._ledgers, shared=self._way == "shared") as store:
            while left := _left(store):
                self._replace_ended()
                if time.monotonic() > until_s:
                    self.wrong.append(f"not drained within {_DRAIN_S:.0f} s: {left}")
                    break
                time.sleep(0.1)
        self._end("worker", "popper")
        self._end("server")

    def _audit(self) -> None:
        self._account.read()
        with rmqstore.open(self.store, services=False) as store:
            self._account.read_topic(store, TOPICS[0], _QUEUES)
            self.wrong += self._account.wrong(TOPICS[0])
            self.wrong += [
                f"given up: {each.message.message_id}" for each in (*store.dead_letters.list(GROUP), *store.dead_letters.parked())
            ]
        command = [sys.executable, "-m", "rmqstore", "verify", str(self.store)]
        verified = subprocess.run(command, capture_output=True, text=True, env=own_environment(), check=False)
        self.wrong += [f"rmqstore verify: {verified.stdout}{verified.stderr}"] if verified.returncode else []
        logs = {path.stem: self._log(path.stem) for path in sorted(self._ledgers.glob("*.log"))}
        self.wrong += [f"{name}: {log[-500:]}" for name, log in logs.items() if "Traceback" in log or "unexpected" in log]

    # ------------------------------------------------------------ what is told

    def _sent(self) -> int:
        self._account.read()
        return self._account.counts["sent"]

    def _progress(self) -> str:
        self._account.read()
        counts, strikes = self._account.counts, self.strikes
        killed = sum(number for what, number in strikes.items() if what.endswith("killed"))
        return (
            f"{counts['sent']:,} sent, {counts['cancel CANCELLED']:,} cancelled, {counts['acked ACKED']:,} done, {killed} kills, "
            f"{strikes['server ended']} restarts, {strikes['clock moved']} jumps of the clock, {strikes['disk filled']} full disks"
        )

    def table(self) -> str:
        """Return the summary."""
        redelivered = {"deliveries beyond the first": self._account.redelivered}
        rows = {**self._account.counts, **redelivered, **self.strikes, "wrong": len(self.wrong)}
        head = f"| {self._engine} | {self._seconds:.0f} s |\n| --- | ---: |\n"
        return head + "\n".join(f"| {what} | {number:,} |" for what, number in rows.items())


def _left(store: Store) -> str:
    """Say what is not done yet; empty when all is."""
    pending = store.pending().total
    lags = [store.lag(topic, GROUP) for topic in TOPICS]
    waiting = sum(lag.ready + lag.in_flight + lag.retry + lag.backing_off for lag in lags)
    return f"{pending} timers, {waiting} messages" if pending or waiting else ""


def soak(engine: str, seconds: float, seed: str, say: Callable[[str], None] = print) -> list[str]:
    """Run over one engine; returns what is wrong. The directory goes afterwards, unless something is."""
    root = Path(tempfile.mkdtemp(prefix=f"rmqstore-soak-{engine}-"))
    with ExitStack() as ending:
        disk = None
        try:
            disk = ending.enter_context(small_disk(root / "disk", size_mib=int(192 + seconds)))
        except OSError as error:
            say(f"no disk is filled: {error}")
        run = Soak(engine, seconds, seed, root, disk, say)
        run.run()
        if run.wrong and disk is not None:
            copy_tree(run.store, root / "store", without=[SOCKET_NAME])
    say(run.table())
    if run.wrong:
        say("\n".join([f"WRONG with seed {seed}; store and ledgers are kept in {root}:", *run.wrong]))
    else:
        shutil.rmtree(root)
    return run.wrong


def main() -> None:
    """Run over each engine, and exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=["wheel", "rocksdb", "lmdb"])
    parser.add_argument("--seconds-each", type=float, default=60.0)
    parser.add_argument("--seed", default=None, help="another one each time by default")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what is mounted goes
    seed = options.seed or str(random.SystemRandom().randrange(10**9))
    again = f"again: make soak SEED={seed} SECONDS_EACH={options.seconds_each:g} ENGINES='{' '.join(options.engines)}'"
    print(again, flush=True)
    wrong = [soak(engine, options.seconds_each, seed, lambda line: print(line, flush=True)) for engine in options.engines]
    print("something is wrong, see above" if any(wrong) else "every message is accounted for", again, sep="; ")
    sys.exit(any(wrong))


if __name__ == "__main__":
    main()
