"""Epochs of stores that part: a copy and its original, or a store and what is left of it, must never give the same handle or receipt.

Every open by an owner raises a store's epoch by one, and handles and receipts carry it. Two stores that go on from one state would give
the same ones, so the one that begins there goes on from a later epoch, drawn at random.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from rmqstore.directory import read_manifest
from rmqstore.readstore import ReadStore

_LEAST, _DRAWN = 1 << 10, 1 << 20


def epoch_of(path: Path) -> int:
    """Return the largest epoch of the store at ``path``, 0 when there is no store: every open by an owner raises it."""
    if read_manifest(path) is None:
        return 0
    with ReadStore(path, {}) as view:
        return max(view.stats().timers.epoch, view.stats().pops.epoch)


def parted_epoch(epoch: int) -> int:
    """Return the least epoch of a store that goes on from another one's state at ``epoch``."""
    return epoch + _LEAST + secrets.randbelow(_DRAWN)
