"""The store that ``rmqstore demo`` leaves for a look inside: a shop in the middle of its day, with all that an operator meets.

It lives through the last hours before now by a clock that is moved by hand, so every message, lease and dead letter has the age that the
commands show. Its words are seeded, so two such stores hold the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import numpy as np

from rmqstore.clock import ManualClock
from rmqstore.errors import StorePathError
from rmqstore.message import Message
from rmqstore.store import Store, open as open_store

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_HISTORY_MS: Final = 3 * _HOUR_MS
_FILE: Final = "rmqstore.toml"
_FIRST_LINE: Final = "# Made by `rmqstore demo`, which replaces this store when it is run again."
_SETTINGS: Final = f"""{_FIRST_LINE}
max_retries = 3           # the shop gives up early
retention_ms = 172800000  # two days
"""
_SEED: Final = 11
_TIMERS: Final = 2400
_PAID_EVERY: Final = 7


def check_place(path: Path) -> None:
    """Refuse a path at which :func:`leave_store` would make no store; changes nothing.

    Raises:
        StorePathError: something else is there, or its parent is missing.
    """
    if path.exists():
        file = path / _FILE
        if not (file.is_file() and file.read_text(encoding="utf-8", errors="replace").startswith(_FIRST_LINE)):
            raise StorePathError(f"{path} exists and was not made by the demo; name another directory with --store")
    elif not path.parent.is_dir():
        raise StorePathError(f"{path.parent} does not exist; make it first, or name another directory with --store")


def leave_store(path: Path, engine: str, now_ms: int) -> None:
    """Make the store ``path``, in place of one that an earlier run left.

    Raises:
        StorePathError: as :func:`check_place` says.
    """
    check_place(path)
    if path.exists():
        shutil.rmtree(path)
    path.mkdir()
    (path / _FILE).write_text(_SETTINGS, encoding="utf-8")
    clock = ManualClock(now_ms - _HISTORY_MS)
    with open_store(path, engine=engine, clock=clock, services=False, flush="async") as store:
        _Shop(store, clock, now_ms).live()


class _Shop:
    """Three hours of a shop: orders that time out, invoices that one consumer cannot digest, parcels that must keep their order."""

    def __init__(self, store: Store, clock: ManualClock, now_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._now_ms = now_ms
        self._rng = np.random.default_rng(_SEED)

    def live(self) -> None:
        """Live through the hours up to now."""
        self._store.topics.create("parcels", 2)
        self._order_timeouts()
        self._invoices()
        self._parcels()
        while self._clock.now_ms() < self._now_ms:
            self._clock.set(min(self._clock.now_ms() + 10 * _MINUTE_MS, self._now_ms))
            self._store.tick()
            self._store.ack(self._store.pop("orders", "closers", max_messages=1024))
        self._consumers_now()

    def _order_timeouts(self) -> None:
        """Timers from now on, most of them soon; one in seven is cancelled again, as if paid."""
        delays = self._rng.gamma(1.4, 2.2 * _HOUR_MS, _TIMERS).astype(np.int64)
        rows = [
            Message(
                "orders",
                f'{{"order": {row}, "action": "close"}}'.encode(),
                tag="close",
                keys=(f"order-{row}",),
                properties={"amount": str(10 + row % 490), "region": ("eu", "us", "asia")[row % 3]},
                message_id=f"close-{row}",
                deliver_at_ms=self._clock.now_ms() + int(delay) + _MINUTE_MS,
            )
            for row, delay in enumerate(delays.tolist())
        ]
        receipts = self._store.send_batch(rows)
        self._store.cancel([str(each.handle) for each in receipts[::_PAID_EVERY]])

    def _invoices(self) -> None:
        """Invoices for two groups; one of them fails on what it cannot read, until its attempts are used up."""
        rows = [
            Message(
                "invoices", f"invoice {row}".encode(), tag="pdf" if row % 5 else "scan", keys=(f"invoice-{row}",), message_id=f"inv-{row}"
            )
            for row in range(500)
        ]
        self._store.send_batch(rows)
        bad = {"inv-40", "inv-121", "inv-305"}
        for _ in range(4):
            while popped := self._store.pop("invoices", "billing", max_messages=64, invisible_ms=_MINUTE_MS):
                self._store.ack([each for each in popped if each.message_id not in bad])
            self._clock.advance(_MINUTE_MS)
            self._store.tick()
        self._store.ack(self._store.pop("invoices", "archive", max_messages=160))

    def _parcels(self) -> None:
        """Parcels in the order of their customers."""
        rows = [
            Message(
                "parcels",
                f"step {step} of parcel {parcel}".encode(),
                message_group=f"parcel-{parcel}",
                message_id=f"parcel-{parcel}-{step}",
            )
            for parcel in range(12)
            for step in ("packed", "labelled", "shipped")
        ]
        self._store.send_batch(rows)

    def _consumers_now(self) -> None:
        """What is under way at this moment."""
        self._store.pop("invoices", "archive", max_messages=8, invisible_ms=30 * _MINUTE_MS)
        self._store.pop("parcels", "shipping", max_messages=6, invisible_ms=15 * _MINUTE_MS, order=True)
        failed = self._store.pop("invoices", "printing", max_messages=3, invisible_ms=1000)
        self._store.retry_later(failed)
