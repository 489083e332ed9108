"""What an engine's inspector finds in a directory: tables for people, and the damage.

An inspector reads files as they are, beside their owner, and changes nothing. So it also looks at what no store opens: a directory
that another program keeps in the same formats, or one that is too damaged for :meth:`rmqstore.contract.Engine.open`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec


class Moment(msgspec.Struct, frozen=True):
    """A point in time, ms since the epoch; shown as a date."""

    ms: int


Cell: TypeAlias = str | int | Moment | None


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One table. ``note`` says in a sentence what it rests on, or why it is empty."""

    heading: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    note: str = ""


class Damage(msgspec.Struct, frozen=True):
    """One thing that is not as it should be. ``file`` is relative to the directory; ``offset``, in bytes, None when all of it is meant."""

    file: str
    offset: int | None
    what: str


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found. ``title`` says in a line what the directory is."""

    title: str
    sections: tuple[Section, ...] = ()
    damage: tuple[Damage, ...] = ()


class Inspector(Protocol):
    """What :attr:`EngineInfo.inspector` names."""

    def __call__(self, directory: Path, now_ms: int | None = None) -> Inspection | None:
        """Look at ``directory``; None when its files are none that the engine knows.

        Damage is told, never raised, and no file is made or changed. What is relative to a time counts from ``now_ms``; without one, from
        a time that the files tell.

        Raises:
            OSError: a file cannot be read.
        """
