"""Every error that rmqstore raises.

All derive from :class:`RmqstoreError` and from the builtin that a reader would expect (``ValueError`` for a bad value,
``OSError`` for the disk, ``LookupError`` for an unknown name), so both ``except RmqstoreError`` and the builtin catch them.
A message names the culprit and says what to do.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Final

__all__ = [
    "AccessDeniedError",
    "BrokenEngineError",
    "ClockStepError",
    "ConfigError",
    "CorruptStoreError",
    "DelayTooLongError",
    "DuplicateEngineError",
    "EngineLookupError",
    "EngineNotInstalledError",
    "FlowControlError",
    "FormatVersionError",
    "IllegalArgumentError",
    "IllegalArgumentTypeError",
    "IllegalFilterError",
    "IllegalMessageError",
    "IllegalMessageTypeError",
    "IllegalNameError",
    "LostCallsError",
    "PollingFullError",
    "RmqstoreError",
    "SparkLostError",
    "StoreClosedError",
    "StoreError",
    "StoreForkedError",
    "StoreFullError",
    "StoreLockedError",
    "StorePathError",
    "StorePoisonedError",
    "StoreUnavailableError",
    "TransferError",
    "UnknownEngineError",
    "UnsupportedOperationError",
]


_HELD = re.compile(r"/proc/self/fd/\d+")


def named(text: str) -> str:
    """Return ``text`` with each directory that it names by a descriptor under the name that the directory has now."""

    def name(held: re.Match[str]) -> str:
        try:
            return str(Path(held[0]).readlink())
        except OSError:
            return held[0]

    return _HELD.sub(name, text)


class RmqstoreError(Exception):
    """Base of every error raised by rmqstore or by an engine that keeps its contract."""

    def __init__(self, *args: object) -> None:
        # An open store knows its directory by a descriptor, which tells its reader nothing.
        super().__init__(*(named(each) if isinstance(each, str) else each for each in args))


# ---------------------------------------------------------------- what the caller gave


class IllegalArgumentError(RmqstoreError, ValueError):
    """An argument has a value that the call cannot take; nothing was changed."""


class IllegalArgumentTypeError(IllegalArgumentError, TypeError):
    """An argument has a type that the call cannot take; nothing was changed."""


class IllegalNameError(IllegalArgumentError):
    """A topic or group name breaks the naming rules of docs/contract.md."""


class IllegalFilterError(IllegalArgumentError):
    """A filter expression is no tag expression and no SQL92 condition; nothing was changed.

    ``expression`` is the filter as it was given, ``position`` the number of characters before the place at fault, so 0 is the first.
    """

    def __init__(self, message: str, *, expression: str = "", position: int = 0) -> None:
        super().__init__(message)
        self.expression = expression
        self.position = position


class IllegalMessageError(IllegalArgumentError):
    """A message or a batch breaks the data contract; the whole call was refused and nothing was stored."""


class IllegalMessageTypeError(IllegalMessageError, TypeError):
    """A field of a message, or a column of a batch, has the wrong type."""


class DelayTooLongError(IllegalMessageError):
    """The deliver time is beyond the horizon of the engine or of the setting ``max_delay_ms`` (T5)."""


class FlowControlError(RmqstoreError, RuntimeError):
    """The timer slot is congested (T9), or sends are paused; nothing was stored: try again later, or wait with ``timeout``."""


class UnsupportedOperationError(RmqstoreError, NotImplementedError):
    """The engine declares this capability absent (S1); nothing was changed."""


# ---------------------------------------------------------------- configuration and plug-ins


class ConfigError(RmqstoreError, ValueError):
    """A setting is unknown, of the wrong type, out of range, or differs from what the store was made with."""


class EngineLookupError(RmqstoreError, LookupError):
    """Base of the errors about finding an engine by its name."""


class UnknownEngineError(EngineLookupError):
    """No installed or known distribution offers an engine of this name."""


class EngineNotInstalledError(EngineLookupError, ImportError):
    """The engine is known, but what it needs is not installed; the message says how to install it."""


class BrokenEngineError(EngineLookupError, ImportError):
    """The engine's distribution failed to import; the cause is chained."""


class DuplicateEngineError(EngineLookupError):
    """Two distributions offer an engine of the same name."""


# ---------------------------------------------------------------- the store on disk


class StoreError(RmqstoreError, OSError):
    """Base of the errors about a store directory and its files."""


class StorePathError(StoreError):
    """The directory cannot be used as a store: missing, read-only, a file, or full of something else."""


class StoreLockedError(StoreError, BlockingIOError):
    """Another owner has the store open (X1)."""


NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)
"""What the system says when a call found no room, on the disk, in a file that may not grow, or among the open files (F1)."""


class StoreFullError(StoreError):
    """The disk has no room, a file may not grow, or no more be opened (F1); the call changed nothing, and with room the store goes on."""


class LostCallsError(StoreFullError):
    """The disk had no room for calls that were answered before they were on it (F1): under ``flush = async`` or ``pop.flush = async``."""


class StorePoisonedError(StoreError):
    """A disk sync failed (F2), or the store's files were removed (X5), so what is durable is unknown; close the store and open it again."""


class TransferError(StoreError, ValueError):
    """A dump, a load or a migration would lose, double or mix something, so nothing was written; the message names it."""


class FormatVersionError(StoreError, ValueError):
    """The store was written in a format that this version cannot read (R4)."""


class CorruptStoreError(StoreError, ValueError):
    """Stored data is damaged in the middle (R6).

    ``file`` is the path of the damaged file or directory, ``offset`` the byte offset or the key at fault; 0 when all that is known is the
    file.
    """

    def __init__(self, message: str, *, file: str = "", offset: int | str = "") -> None:
        super().__init__(message)
        self.file = named(file)
        self.offset = offset


# ---------------------------------------------------------------- the life of an open store


class StoreClosedError(RmqstoreError, ValueError):
    """The store is closed; open it again."""


class StoreForkedError(RmqstoreError, RuntimeError):
    """The store was opened by another process: a forked child must open a store of its own (X2)."""


class ClockStepError(RmqstoreError, RuntimeError):
    """The clock went forward by more than ``clock.max_step_ms``; the hand-over waits for ``confirm_clock_step`` (K2)."""


# ---------------------------------------------------------------- a store of another process


class StoreUnavailableError(RmqstoreError, ConnectionError):
    """The process that serves the store cannot be reached, or went away, or the thread that stored a send with its own was ended.

    The message says whether the call may have been done.
    """


class AccessDeniedError(RmqstoreError, PermissionError):
    """The server wants another token, or a certificate."""


class PollingFullError(RmqstoreError, RuntimeError):
    """As many pops wait at the server as it allows (RocketMQ ``POLLING_FULL``), or are connected, or as much is under way; try later."""


# ---------------------------------------------------------------- what works for the caller


class SparkLostError(RmqstoreError, ConnectionError):
    """Spark's process ended while its session was in use; run the job again, with the same job id."""


def system_error(error: OSError, path: Path) -> OSError:
    """Return the typed error for what the operating system said about ``path``; one that is typed comes back as it is."""
    if isinstance(error, StoreError):
        return error
    if error.errno in NO_ROOM:
        return StoreFullError(f"no room for {path}: {error.strerror}; make room and try again")
    return StorePathError(f"{path} cannot be used: {error.strerror or error}")
