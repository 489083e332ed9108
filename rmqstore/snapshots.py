"""Copies of a whole store while it runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from rmqstore.directory import translated, write_manifest
from rmqstore.errors import StorePathError
from rmqstore.opening import Opened


def write_snapshot(opened: Opened, path: Path) -> Path:
    """Write a copy of the open store to the new directory ``path``; the caller holds the hand-over back.

    The manifest comes last, so an interrupted copy is no store.

    Raises:
        StorePathError: ``path`` exists, or its parent does not.
        StoreFullError: no room; what was written is removed.
    """
    try:
        path.mkdir()
    except FileExistsError as error:
        raise StorePathError(f"{path} exists already; a snapshot goes into a new directory") from error
    except OSError as error:
        raise translated(error, path) from error
    try:
        # Timers first: what is handed over meanwhile by nobody cannot be missing from both.
        for engine, session in opened.sessions.items():
            session.snapshot(path / engine)
        write_manifest(path, opened.manifest)
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise translated(error, path) from error
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path
