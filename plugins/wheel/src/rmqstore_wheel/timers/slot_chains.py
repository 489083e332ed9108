"""The chains of the timer log: each unit of a slot names the one before it, back to the first of its slot (RIP-43).

The units that one call put into a slot stand side by side; between those of many calls stand the units of other slots, so the chain of a
slot may lead all over the log. Many chains are walked abreast, a unit of each at a time; of few or long ones each is followed link by
link, and read in runs where its units stand side by side. A unit must be followed by an older one, not before the chain's first, so a
walk always ends.
"""

from __future__ import annotations

from typing import Final, NoReturn

import numpy as np

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.files.units import UnitLog
from rmqstore_wheel.formats.binary_columns import Ints
from rmqstore_wheel.formats.timer_log import link_in

_ABREAST: Final = 48
"""With fewer chains, a step of numpy for all of them costs more than a link of each."""

_LONG: Final = 4096
"""Longer chains are not walked abreast: of these, runs are the rule."""

_STRAIGHT: Final = 16
"""So many units side by side, and more of them are expected."""

_RUN: Final = 64
_LONGEST_RUN: Final = 65_536

_NOWHERE: Final = -1
"""No unit is at this byte."""


def walk(units: UnitLog, lasts: Ints, firsts: Ints, owners: Ints) -> tuple[Ints, Ints]:
    """Return (units by number, owner of each) of some chains, in no order.

    Args:
        lasts, firsts: where the newest and the oldest unit of each chain is.
        owners: whom each chain belongs to.

    Raises:
        CorruptStoreError: a chain does not lead from newer to older units.
    """
    found: list[Ints] = []
    of_owner: list[Ints] = []
    current, firsts = units.numbers(lasts), units.numbers(firsts)
    steps = 0
    while len(current) >= _ABREAST and steps < _LONG:
        found.append(current)
        of_owner.append(owners)
        going = current != firsts
        current, firsts, owners = current[going], firsts[going], owners[going]
        if len(current):
            before = units.numbers(units.gather(current)["previous"].astype(np.int64))
            if (wrong := (before >= current) | (before < firsts)).any():
                _refuse(units, int(current[wrong.argmax()]))
            current = before
        steps += 1
    for at, (number, first) in enumerate(zip(current.tolist(), firsts.tolist(), strict=True)):
        chain = _walk_one(units, number, first) if number > first else current[at : at + 1]
        found.append(chain)
        of_owner.append(owners[at : at + 1].repeat(len(chain)))
    if len(found) < 2:
        return (found[0], of_owner[0]) if found else (current, owners)
    return np.concatenate(found), np.concatenate(of_owner)


def _walk_one(units: UnitLog, number: int, first: int) -> Ints:
    """Return the units of one chain from ``number`` back to ``first``."""
    found: list[Ints] = []
    while number > first:
        links, number = _follow(units, number, first)
        found.append(links)
        if number > first:
            run, number = _read_back(units, number, first)
            found.append(run)
    found.append(np.array([first]))
    return np.concatenate(found)


def _follow(units: UnitLog, number: int, first: int) -> tuple[Ints, int]:
    """Return the units of a chain from ``number`` back, link by link, up to its first one or to where they stand side by side, and the next
    one.
    """
    size, file_bytes = units.unit.itemsize, units.chain.file_bytes
    position, oldest = units.position(number), units.position(first)
    found: list[int] = []
    begin = behind = straight = 0
    data = memoryview(b"")
    while position > oldest and straight < _STRAIGHT:
        if not begin <= position < behind:
            if (number := units.number(position)) < 0:
                break
            start, data = units.around(number)
            base = position - (number - start) * size
            file = position - position % file_bytes
            # Up to where a whole unit begins at the latest; what is at hand may go on in the next file, whose places are others.
            begin, behind = max(base, file), min(base + len(data), file + units.per_file * size) - size + 1
        found.append(position)
        before = link_in(data, position - base)[0]
        straight = straight + 1 if position - before == size else 0
        position = before if oldest <= before < position else _NOWHERE
    numbers = units.numbers(np.array([*found, position]))
    if (wrong := numbers < 0).any():
        _refuse(units, int(numbers[wrong.argmax() - 1]))
    return numbers[:-1], int(numbers[-1])


def _read_back(units: UnitLog, number: int, first: int) -> tuple[Ints, int]:
    """Return the units of a chain that stand side by side from ``number`` back, but for its first one, and the next one."""
    begin, step = number + 1, _RUN
    while begin - 1 > first:
        low = max(begin - step, first + 1)
        before = units.read(low, begin - low)["previous"]
        breaks = np.flatnonzero(before != units.position(np.arange(low - 1, begin - 1)))
        if len(breaks):
            start = low + int(breaks[-1])
            following = units.number(int(before[start - low]))
            if not first <= following < start:
                _refuse(units, start)
            return np.arange(start, number + 1), following
        begin, step = low, min(4 * step, _LONGEST_RUN)
    return np.arange(first + 1, number + 1), first


def _refuse(units: UnitLog, number: int) -> NoReturn:
    at = units.position(number)
    path = str(units.chain.path_of(at))
    raise CorruptStoreError(f"{path}: the unit at {at} is not followed by an older one of its slot", file=path, offset=at)
