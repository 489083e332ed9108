"""What is gathered while the files are read: damage, so much of each kind as a person would read."""

from __future__ import annotations

from collections import Counter
from typing import Final

from rmqstore.contract import Damage
from rmqstore.errors import CorruptStoreError

MOST_OF_A_KIND: Final = 10
"""Places of one kind of damage that are told of one file; the others are counted."""


class Findings:
    """Damage in the order in which it was found."""

    def __init__(self) -> None:
        self._told: list[Damage] = []
        self._number: Counter[tuple[str, str]] = Counter()

    def add(self, file: str, offset: int | None, what: str, *, kind: str = "") -> None:
        """Note damage in ``file``. ``kind`` is what many places may have in common, of which the first are told."""
        if kind:
            self._number[file, kind] += 1
            if self._number[file, kind] > MOST_OF_A_KIND:
                return
        self._told.append(Damage(file, offset, what))

    def count(self, file: str, kind: str, number: int) -> None:
        """Note more damage of a kind of which enough was told."""
        self._number[file, kind] += number

    def has_room(self, file: str, kind: str) -> bool:
        """Say whether one more place of this kind would be told."""
        return self._number[file, kind] < MOST_OF_A_KIND

    def add_error(self, file: str, error: CorruptStoreError) -> None:
        """Note what a codec refuses."""
        self.add(file, error.offset if isinstance(error.offset, int) else None, str(error))

    def all(self) -> tuple[Damage, ...]:
        """Return all of it, and for each kind that is not told in full how many more there are."""
        told = Counter({key: min(number, MOST_OF_A_KIND) for key, number in self._number.items()})
        more = [
            Damage(file, None, f"{number - told[file, kind]} more: {kind}")
            for (file, kind), number in self._number.items()
            if number > told[file, kind]
        ]
        return (*self._told, *more)
