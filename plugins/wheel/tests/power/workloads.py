"""What the stores do that power is taken from: a few dozen calls each, so that every kind of call meets every kind of file change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from plugins.wheel.tests.power.life import Life, Place
from plugins.wheel.tests.power.small_store import SIZES
from rmqstore_wheel.ledger_ports import Sizes

SECOND: Final = 1000


class Workload(NamedTuple):
    """A workload: its calls, the topics and groups, the times at which it is drained, ms after the start, and the settings."""

    run: Callable[[Life], None]
    places: tuple[Place, ...]
    times_ms: tuple[int, ...]
    precision_ms: int = 1000
    retention_ms: int = 0
    sizes: Sizes = SIZES


def timers(life: Life) -> None:
    """Put, cancel and hand over; some bodies are longer than a sector."""
    first = life.put(3 * SECOND)
    batch = life.put(2 * SECOND, 5 * SECOND, 5 * SECOND, 9 * SECOND, body=b"x" * 700, marks=(b"one",))
    keyed = life.put(4 * SECOND, 6 * SECOND, keys=("k",), tag="t")
    life.cancel(batch[1])
    late = life.put(40 * SECOND, 90 * SECOND, topic="U", keys=("k",))
    life.tick(2 * SECOND)
    life.maintain()
    life.cancel_key("k", keyed)
    life.put(1 * SECOND, marks=(b"two",), body=b"y" * 1300)
    life.cancel(first[0], batch[1], batch[2])
    life.tick(3 * SECOND)
    life.put(0)
    life.tick()
    life.cancel(late[0])
    life.maintain()
    for delay in (1, 2, 3):
        life.put(delay * SECOND, (delay + 7) * SECOND)
        life.tick(1 * SECOND)
    life.put(*(3 * SECOND for _ in range(12)))
    life.tick(3 * SECOND)
    life.maintain()
    life.tick(1 * SECOND)


def pops(life: Life) -> None:
    """Pop, ack, change, release; let leases expire into the retry topic and the dead letter queue."""
    life.append(6, marks=(b"pop one",))
    taken = life.pop(4)
    life.ack(taken[:1])
    life.pop(2, group="h", invisible_ms=5 * SECOND)
    life.change(taken[1:2], 90 * SECOND)
    life.release(taken[2:3])
    life.put(2 * SECOND)
    life.maintain()
    life.tick(6 * SECOND)
    again = life.pop(5, group="h", invisible_ms=5 * SECOND)
    life.ack(again[:1], group="h")
    life.ack_and_append(taken[1:2], 2)
    life.tick(6 * SECOND)
    life.pop(3)
    life.tick(10 * SECOND)
    third = life.pop(8, group="h", invisible_ms=4 * SECOND)
    life.ack(third[-1:], group="h")
    life.maintain()
    life.tick(5 * SECOND)
    life.tick(20 * SECOND)
    fourth = life.pop(16, invisible_ms=3 * SECOND)
    life.ack(fourth[:2])
    life.tick(4 * SECOND)
    life.pop(16, invisible_ms=3 * SECOND)
    life.tick(4 * SECOND)
    life.maintain()


def expiring(life: Life) -> None:
    """Let leases of many pops expire, one revive after the other."""
    life.append(9, body=b"z" * 300)
    for _ in range(8):
        life.pop(2, invisible_ms=2 * SECOND)
        life.pop(1, group="h", invisible_ms=3 * SECOND)
        life.tick(2 * SECOND)
        life.tick(1 * SECOND)
    life.maintain()


def rolls(life: Life) -> None:
    """Put timers beyond the roll window and tick on, so that they roll again and again."""
    unit = life.settings.precision_ms
    far = life.put(*(unit * (20 + 7 * step) for step in range(8)))
    for step in range(30):
        life.put((31 + 3 * step) * unit, keys=("k",))
    for step in range(20):
        life.tick(2 * unit)
        if step in (2, 7):
            life.cancel(far[7 - step // 2])
        if step % 4 == 0:
            life.maintain()
        if step == 4:
            life.put(60 * unit, 18 * unit)
    life.tick(9 * unit)
    life.maintain()


def files(life: Life) -> None:
    """Fill file after file of the log; some calls are longer than a file."""
    for step in range(3):
        life.put(5 * SECOND, body=b"a" * 1500)
        names = life.put(*(4 * SECOND for _ in range(3)), body=b"b" * 1000)
        life.cancel(names[0])
        life.append(2, body=b"c" * 1200)
        life.append(1, body=b"e" * 3500)
        if step == 1:
            life.maintain()
    life.append(6, body=b"d" * 1100)
    life.put(*(6 * SECOND for _ in range(9)), body=b"f" * 900)
    taken = life.pop(6)
    life.ack(taken)
    life.tick(5 * SECOND)
    life.append(2, body=b"g" * 3700)
    life.maintain()
    life.tick(1 * SECOND)


def check_points(life: Life) -> None:
    """Make many check points, with little and much between them."""
    for step in range(6):
        names = life.put((2 + step) * SECOND, 30 * SECOND, keys=("k",))
        life.append(1)
        life.ack(life.pop(1))
        life.cancel(names[1])
        life.tick(1 * SECOND)
        life.append(1, body=b"h" * (1800 if step % 2 else 20))
        life.maintain()


def lazily(life: Life) -> None:
    """Make calls that nobody waits for, and sync now and then."""
    life.is_lazy = True
    for step in range(4):
        names = life.put(3 * SECOND, 8 * SECOND, 8 * SECOND, body=b"i" * 400)
        life.append(2, body=b"j" * 600)
        taken = life.pop(2)
        life.cancel(names[2])
        life.ack(taken[:1])
        if step % 2:
            life.settle()
        life.tick(2 * SECOND)
        if step == 2:
            life.maintain()
    life.settle()


def lives(life: Life) -> None:
    """Be killed again and again, with and without calls that nobody waited for."""
    for step in range(5):
        life.is_lazy = step % 2 == 1
        names = life.put(3 * SECOND, 20 * SECOND, body=b"l" * 300 * step, keys=("k",))
        life.append(2, topic="TU"[step % 2])
        life.pop(2, topic="TU"[step % 2], invisible_ms=6 * SECOND)
        if step == 2:
            life.maintain()
        life.cancel(names[step % 2])
        life.die()
        life.tick(2 * SECOND)


def reclaims(life: Life) -> None:
    """Let retention take what is old, leased or not, and files go of which nothing is needed any more."""
    for step in range(14):
        life.append(3, body=b"k" * 300)
        taken = life.pop(2, invisible_ms=7 * SECOND)
        life.ack(taken[: step % 3])
        life.put(1 * SECOND)
        life.tick(2 * SECOND)
        life.maintain()
        life.settle()


def copies(life: Life) -> None:
    """Let files of the log go in which little is live: timers for later, cancelled or not, and leased messages."""
    for step in range(8):
        names = life.put(60 * SECOND, 61 * SECOND, body=b"n" * 60, keys=("k",))
        life.append(3, body=b"m" * 900)
        life.ack(life.pop(3))
        if step % 3 == 1:
            life.cancel(names[1])
        if step % 4 == 2:
            life.append(1)
            life.pop(1, invisible_ms=40 * SECOND)
        life.tick(3 * SECOND)
        life.maintain()


TINY: Final = SIZES._replace(queue_file_units=8, timer_file_units=8, check_point_calls=4)
G: Final = ("T", "g")
H: Final = ("T", "h")
FAR: Final = 4000 * SECOND

WORKLOADS: Final = {
    "timers": Workload(timers, (G, ("U", "g")), (6 * SECOND, 50 * SECOND, FAR)),
    "pops": Workload(pops, (G, H), (20 * SECOND, FAR, 2 * FAR)),
    "expiring": Workload(expiring, (G, H), (20 * SECOND, FAR, 2 * FAR)),
    "rolls": Workload(rolls, (G,), (10 * SECOND, 37 * SECOND, 61 * SECOND, FAR)),
    "fine rolls": Workload(rolls, (G,), (1000, 3700, 6100, FAR), precision_ms=100),
    "files": Workload(files, (G,), (5 * SECOND, FAR, 2 * FAR)),
    "check points": Workload(check_points, (G,), (5 * SECOND, FAR, 2 * FAR)),
    "lazily": Workload(lazily, (G,), (5 * SECOND, FAR, 2 * FAR)),
    "lives": Workload(lives, (G, ("U", "g")), (5 * SECOND, FAR, 2 * FAR)),
    "copies": Workload(copies, (G, H), (5 * SECOND, FAR, 2 * FAR), retention_ms=4 * SECOND),
    "reclaims": Workload(reclaims, (G, H), (5 * SECOND, FAR, 2 * FAR), retention_ms=8 * SECOND, sizes=TINY),
}
