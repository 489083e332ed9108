"""A new store that is built beside an old one and takes its place in one step.

::

    DIR                    the store, or nothing yet
    DIR.<what>             the new one while it is being built
    DIR.<what>.json        what is being built, there before it; once it is built, also by what it is known
    DIR.before-…           the old one, kept when all is done

Directories change places by one ``renameat2(RENAME_EXCHANGE)``, so at every moment DIR is the old store or the new one. Where the file
system has no such call, two renames do it, and the next run finishes what a crash between them left.

Why nothing but the whole new store comes into the place, and the old one is never removed, wherever a run ends: The note is there before
anything is built, and is emptied before anything of that is removed. When the new store is complete and closed, the note gets its mark,
a digest of its manifest. So a directory that has this mark is the whole new store, wherever it is, and only that is put into the place.
Beside such a note, what is at DIR.<what> and has another mark is the old store, which gets its name. What is complete stands for one
state of the old store, its number and its epoch, which each open raises: it is compared under the lock of that store, or, between two
renames, where that was put, and what is out of date is not published but built anew. Where neither DIR nor DIR.<what> has the mark,
somebody took the new store away; then the note goes. Of two runs at a place, the one that claims it later takes it (``alone``), unless the
other one is building, which the lock of the new store tells; the other finds a note that is not its own, when it begins to build and when
it ends, and fails.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import shutil
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmqstore.config import FILE_NAME as CONFIG_NAME
from rmqstore.engine.kv.directory import FileLock, sync_path
from rmqstore.errors import StoreLockedError, TransferError
from rmqstore.store.directory import CREATING_NAME, LOCK_NAME, StoreDirectory, flocked, json_bytes, read_manifest, write_durably
from rmqstore.store.snapshots import epoch_of

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class Published(NamedTuple):
    """The new store is in its place; ``previous`` is where the old one is, if there was one."""

    previous: Path | None


class Replacement:
    """The way of one store, or data set, into the place ``path``; ``what`` names the undertaking in the file names.

    Attributes:
        path: the place by a name beside which others can be: what a symlink leads to, and never ``.`` or ``..``.
        staging: where the new one is built.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path = Path(os.path.realpath(path)) if path.is_symlink() or path.name in ("", "..") else path
        self.staging = path.with_name(f"{path.name}.{what}")
        self._note = path.with_name(f"{path.name}.{what}.json")

    def noted(self) -> dict[str, Any] | None:
        """Return what :meth:`begin` noted, when an earlier run was interrupted."""
        try:
            found = json.loads(self._note.read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def claim(self) -> None:
        """Make room for the new store: what an earlier run left goes.

        Raises:
            TransferError: as :meth:`check_free`.
            StoreLockedError: another run builds there.
        """
        self.check_free()
        self._free()
        self._write({})

    def abandon(self, *, is_own: bool = False) -> None:
        """Leave nothing behind; raises as :meth:`claim`. What ``is_own``, as this run has built it, goes whatever is noted."""
        if not is_own:
            self.check_free()
        self._free()
        self._note.unlink(missing_ok=True)

    def check_free(self) -> None:
        """Refuse what is in the way; :class:`TransferError`: no run left it."""
        if self.staging.exists() and not self._note.exists():
            raise TransferError(f"{self.staging} is in the way; move it, since the new store is built there")

    def _free(self) -> None:
        """Remove what was being built, when nobody is at it; what is the old store by now stays, by its name."""
        if not self.staging.exists():
            return
        note = self.noted() or {}
        if "mark" in note and not self.is_built():
            self._keep_old(note)
            return
        with ExitStack() as stack:
            if (self.staging / LOCK_NAME).exists():
                try:
                    stack.callback(FileLock(self.staging / LOCK_NAME).release)
                except BlockingIOError:
                    raise StoreLockedError(f"another run is building {self.staging}; let it come to its end") from None
            self._write({})  # a half of it counts for nothing
            shutil.rmtree(self.staging)

    def is_built(self) -> bool:
        """Say whether what was noted as complete is where it was built."""
        return self._is_it(self.staging)

    def is_in_place(self) -> bool:
        """Say whether what was noted as complete is in its place, so that only the name of the old one is missing."""
        return self._is_it(self.path)

    def _is_it(self, directory: Path) -> bool:
        noted = (self.noted() or {}).get("mark")
        return noted is not None and _mark(directory) == noted

    def alone(self) -> AbstractContextManager[int]:
        """Let no other run claim the place, or put its new store there, in this block."""
        return flocked(self.path.parent, fcntl.LOCK_EX)

    def begin(self, note: dict[str, Any], settings: str = "") -> None:
        """Note durably what is being built, and give it the settings file of the place; where there is none, one with ``settings``."""
        self._take_settings(settings)
        self._write(note)

    def _take_settings(self, settings: str = "") -> None:
        config = self.path / CONFIG_NAME
        if config.is_file() or settings:
            self.staging.mkdir(exist_ok=True)
            copy = self.staging / CONFIG_NAME
            if config.is_file():
                shutil.copyfile(config, copy)
            else:
                copy.write_text(settings, encoding="utf-8")
            # Else a power loss behind the exchange leaves a store without its settings.
            sync_path(copy)
            sync_path(self.staging)

    def ready(self, tables: dict[str, int], place: tuple[int, int], previous: str) -> None:
        """Note that the new store is complete.

        Args:
            tables: what it took in, for the report.
            place: id and epoch of the store in the place, 0 when there is none; once it is another one, the new store is out of date.
            previous: the end of the name that the old one will have, before the time.
        """
        name = self._free_name(f"{self.path.name}.{previous}-{datetime.now(UTC):%Y%m%dT%H%M%S}")
        self._write({**(self.noted() or {}), "tables": tables, "place": place, "mark": _mark(self.staging), "previous": name})

    def _free_name(self, plain: str) -> str:
        name = plain
        for number in count(2):
            if not self.path.with_name(name).exists():
                break
            name = f"{plain}~{number}"
        return name

    def take_up(self) -> Published | None:
        """Finish what was complete; None when nothing is, or when it is out of date by now, as another store is in the place.

        When it is neither in its place nor where it was built, somebody removed it: then the note of it goes, too.

        Raises:
            StoreLockedError: the store in the place is open.
            StorePathError: something else is there.
        """
        note = self.noted()
        if note is None or "mark" not in note:
            return None
        if not self.is_in_place() and not self.is_built():
            self._keep_old(note)
            self._note.unlink()
            return None
        with ExitStack() as stack:
            if not self.is_in_place():
                old = self.path
                if old.exists():
                    # Held until they have changed places: who opens a store there meanwhile would go on in one that is out of the way.
                    stack.enter_context(StoreDirectory(old))
                else:  # between two renames
                    old = self.path.with_name(note["previous"])
                state = [(read_manifest(old) or {}).get("store_id", 0), epoch_of(old)] if old.exists() else [0, 0]
                if state != note.get("place"):
                    return None
            return self.publish()

    def publish(self) -> Published:
        """Put the new store into its place and say where the old one is. Can be called again after a crash anywhere in it."""
        note = self.noted() or {}
        if not self.is_in_place():
            self._take_settings()  # as they are by now
            if not self.path.exists():
                self.staging.rename(self.path)
            elif not exchanged(self.staging, self.path):
                self.path.rename(self.path.with_name(self._free_name(note["previous"])))
                self.staging.rename(self.path)
            sync_path(self.path.parent)
        previous = self._keep_old(note)
        self._note.unlink()
        return Published(previous if previous.exists() else None)

    def _keep_old(self, note: dict[str, Any]) -> Path:
        """Give the old store, which is where the new one was built, its name, another one if somebody has put it back; returns that."""
        previous = self.path.with_name(note["previous"])
        if self.staging.exists():
            previous = self.path.with_name(self._free_name(note["previous"]))
            self.staging.rename(previous)
        if previous.exists() and {entry.name for entry in previous.iterdir()} <= {CONFIG_NAME, LOCK_NAME, CREATING_NAME}:
            # There was no store, only its settings, which the new one has.
            shutil.rmtree(previous)
        sync_path(self.path.parent)
        return previous

    def _write(self, note: dict[str, Any]) -> None:
        write_durably(self._note, json_bytes(note))


def _mark(directory: Path) -> str:
    """Return what a store, or a data set, is known by wherever it is: a digest of its manifest. Its inode may be another one's by now."""
    digest = hashlib.sha256()
    for manifest in sorted(directory.glob("rmqstore*.json")):
        digest.update(manifest.read_bytes())
    return digest.hexdigest()


def exchanged(one: Path, other: Path) -> bool:
    """Let two directories change names in one step; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))
