"""Answers of tasks to the driver: a report, or why there is none, as JSON.

A failure that no further attempt can mend (bad rows, a missing engine) is an answer like any other, so that Spark does not try four times.
Anything else is raised in the task, and Spark tries again; when it gives up, the driver finds the error in the text of Spark's exception.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from rmqstore import errors
from rmqstore.errors import (
    ConfigError,
    EngineLookupError,
    FormatVersionError,
    IllegalArgumentError,
    RmqstoreError,
    StoreError,
    StoreLockedError,
    TransferError,
    UnsupportedOperationError,
)

LASTING: Final = (IllegalArgumentError, EngineLookupError, ConfigError, UnsupportedOperationError, FormatVersionError, TransferError)
"""Errors that the next attempt would meet again."""

_Report = TypeVar("_Report", bound=msgspec.Struct)

_RAISED: Final = re.compile(r"rmqstore\.errors\.(\w+): (.*)")


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Why a task has no report: the name of the error, its text, and the machine."""

    kind: str
    text: str
    host: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Return an error as an answer."""
        return cls(kind=type(error).__name__, text=str(error), host=socket.gethostname())

    @property
    def is_lasting(self) -> bool:
        """Whether another attempt would meet it again; for a shard that is open elsewhere it has waited long enough."""
        return isinstance(self.error(), (*LASTING, StoreLockedError))

    def error(self) -> Exception:
        """Return the error again, for the driver to raise."""
        kind = getattr(errors, self.kind, StoreError)
        what = f"{self.text} (on {self.host}; every machine that runs tasks needs it)" if issubclass(kind, EngineLookupError) else self.text
        found: Exception = kind(what)
        return found


def encoded(answer: msgspec.Struct) -> str:
    """Return an answer as JSON."""
    return msgspec.json.encode(answer).decode()


def reports(answers: Iterable[str], kind: type[_Report]) -> list[_Report]:
    """Read what :func:`encoded` gave of reports of one kind; the first failure among the answers is raised."""
    found: list[_Report] = []
    for answer in answers:
        each: Any = msgspec.json.decode(answer, type=kind | Failure)
        if isinstance(each, Failure):
            raise each.error()
        found.append(each)
    return found


def typed(error: Exception) -> Exception:
    """Return the error of ours that a task ended with, by what Spark says of it; the same error when there is none."""
    found = _RAISED.findall(str(error))
    if isinstance(error, RmqstoreError) or not found:
        return error
    name, text = found[-1]
    return Failure(kind=name, text=text.strip(), host="an executor").error()
