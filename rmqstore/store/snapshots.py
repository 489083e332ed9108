"""Copies of a whole store: taken while it runs, and put in place as a store; and the epochs of a copy and its original.

Every open by an owner raises a store's epoch by one, and handles and receipts carry it. A copy and its original, or a store and what is
left of it, go on from one state and would give the same ones, so the one that begins there goes on from a later epoch, drawn at random.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from rmqstore.config import FILE_NAME as CONFIG_NAME
from rmqstore.engine.kv.directory import copy_tree
from rmqstore.errors import StorePathError, system_error
from rmqstore.store.directory import LOCK_NAME, MANIFEST_NAME, SOCKET_NAME, StoreDirectory, made_aside, read_manifest, write_manifest
from rmqstore.store.opening import OwnedEngines, checked_path
from rmqstore.store.reader import ReadStore

_LEAST_STEP: Final = 1 << 10
_DRAWN_STEP: Final = 1 << 20


def write_snapshot(engines: OwnedEngines, path: Path) -> Path:
    """Write a copy of the open store to the new directory ``path``; of two engines the caller holds the hand-over back.

    It is made aside and renamed into place, so there is a whole copy at ``path``, or nothing.

    Raises:
        StorePathError: ``path`` exists, or its parent does not.
        StoreFullError: no room; what was written is removed.
    """
    try:
        is_there = path.exists()
    except OSError as error:
        raise system_error(error, path) from error
    if is_there:
        raise StorePathError(f"{path} exists already; a snapshot goes into a new directory")
    if any(above.exists() and above.samefile(engines.directory.held) for above in path.absolute().parents):
        raise StorePathError(f"{path} lies in the store itself, which would copy its own copies; a snapshot goes elsewhere")
    with made_aside(path, "copying") as copy:
        # Timers first: what is handed over meanwhile cannot be missing from both.
        for engine, session in engines.sessions.items():
            session.snapshot(copy / engine)
        given = engines.directory.held / CONFIG_NAME
        if given.is_file():
            # A retention that only the file gives decides what the copy keeps.
            shutil.copy2(given, copy / CONFIG_NAME)
        # A copy opens as a store, too, and its original goes on.
        epochs = (engines.timers.stats().epoch, engines.pops.stats().epoch, engines.manifest.get("min_epoch", 0))
        write_manifest(copy, {**engines.manifest, "min_epoch": parted_epoch(max(epochs))})
    return path


def restore(snapshot: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Make the store ``path``, which must not exist yet, from a snapshot, which stays as it is; returns its path.

    It is the store that the snapshot was taken from: receipts and handles of that time count. The copy is made aside and renamed into
    place when it is durable, so an interrupted restore leaves no store, and can simply be run again.

    Raises:
        StorePathError: ``snapshot`` is no snapshot, ``path`` exists, or its parent does not.
        StoreLockedError: ``snapshot`` is open as a store.
        FormatVersionError, CorruptStoreError: the snapshot's manifest cannot be read.
        StoreFullError: no room; what was written is removed.
    """
    source, target = checked_path(snapshot), checked_path(path)
    if read_manifest(source) is None:
        raise StorePathError(f"{source} is no snapshot: it has no {MANIFEST_NAME}, which a finished snapshot has")
    if target.exists():
        raise StorePathError(f"{target} exists already; restore into a new directory, and swap the two yourself if you mean to replace it")
    if not target.absolute().parent.is_dir():
        raise StorePathError(f"{target.absolute().parent} does not exist; make it first, then restore into {target}")
    with made_aside(target, "restoring") as aside:
        # A snapshot that was opened itself has a lock; somebody who holds it may be writing.
        with StoreDirectory(source) if (source / LOCK_NAME).exists() else nullcontext():
            copy_tree(source, aside, without=(LOCK_NAME, SOCKET_NAME))
        manifest = read_manifest(aside) or {}
        # The store went on after the snapshot: from here on the two of them never give the same handle or receipt.
        manifest["min_epoch"] = parted_epoch(max(manifest.get("min_epoch", 0), epoch_of(aside)))
        write_manifest(aside, manifest)
    return target


def epoch_of(path: Path) -> int:
    """Return the largest epoch of the store at ``path``, 0 when there is no store."""
    if read_manifest(path) is None:
        return 0
    with ReadStore(path, {}) as view:
        stats = view.stats()
        return max(stats.timers.epoch, stats.pops.epoch)


def parted_epoch(epoch: int) -> int:
    """Return the least epoch of a store that goes on from another one's state at ``epoch``."""
    return epoch + _LEAST_STEP + secrets.randbelow(_DRAWN_STEP)
