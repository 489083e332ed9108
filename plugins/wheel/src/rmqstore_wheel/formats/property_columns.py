"""Properties of many messages, from text to columns; ``properties`` tells what the text looks like."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np

from rmqstore.columns import offsets_of
from rmqstore.late import pa, schemas
from rmqstore_wheel.formats.binary_columns import Ints, Octets, cells
from rmqstore_wheel.formats.properties import decode, is_hidden

_MAX_REGULAR: Final = 32
_NONE: Final = np.zeros(0, np.int64)
_STEP: Final = 4
"""Pieces of an entry: a name, U+0001, a value, U+0002."""


class Properties(msgspec.Struct):
    """The properties of a batch: entry i is of row ``rows[i]`` and has the name ``names[ids[i]]``; its value is ``values[i * step]``.

    No row has a name twice. When ``is_regular``, each row has all names, in their order, and ``ids`` and ``rows`` are not needed.
    """

    names: list[str]
    ids: Ints
    rows: Ints
    values: pa.Array
    row_count: int
    step: int = 1
    is_regular: bool = False

    def column(self, name: str) -> pa.Array:
        """Return one property of every row, as texts; null where a row does not have it."""
        if name not in self.names:
            return pa.nulls(self.row_count, pa.string())
        at = self.names.index(name)
        if self.is_regular:
            return self.values.take(pa.array((np.arange(self.row_count) * len(self.names) + at) * self.step))
        mine = np.flatnonzero(self.ids == at)
        picked = np.full(self.row_count, -1, np.int64)
        picked[self.rows[mine]] = mine * self.step
        return self.values.take(pa.array(picked, mask=picked < 0))

    def visible(self) -> pa.Array:
        """Return the properties that a user sees as a map column, null where a row has none."""
        shown = np.array([not is_hidden(name) for name in self.names], bool)
        if not shown.any():
            return pa.nulls(self.row_count, schemas.PROPERTIES)
        ids, rows = self.ids, self.rows
        if self.is_regular:
            ids, rows = np.tile(np.arange(len(self.names)), self.row_count), np.arange(self.row_count).repeat(len(self.names))
        mine = np.flatnonzero(shown[ids])
        counts = np.bincount(rows[mine], minlength=self.row_count)
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32(), mask=np.append(counts == 0, False))
        names = pa.array(self.names, pa.string()).take(pa.array(ids[mine]))
        return pa.MapArray.from_arrays(offsets, names, self.values.take(pa.array(mine * self.step)))


def decode_column(texts: pa.Array) -> Properties:
    """Read a binary column of texts; the same as ``properties.decode`` row by row."""
    return _decode_well_formed(texts) or _decode_rows(texts)


def _decode_rows(texts: pa.Array) -> Properties:
    found = [decode(text) for text in texts.to_pylist()]
    names = list(dict.fromkeys(name for row in found for name in row))
    numbers = {name: number for number, name in enumerate(names)}
    return Properties(
        names,
        np.array([numbers[name] for row in found for name in row], np.int64),
        np.repeat(np.arange(len(found)), [len(row) for row in found]),
        pa.array([value for row in found for value in row.values()], pa.string()),
        len(found),
    )


def _decode_well_formed(texts: pa.Array) -> Properties | None:
    """Read texts that all are well formed; None when one is not.

    A column is laid over the bytes, whose elements are in turn a name, U+0001, a value, U+0002.
    """
    rows = len(texts)
    found = _find_entries(texts)
    if found is None or not _is_utf8(found.data):
        return None
    if not len(found.starts):
        return Properties([], found.starts, found.starts, pa.array([], pa.string()), rows)
    bounds = np.empty(4 * len(found.starts) + 1, np.int32)
    bounds[:-1:4], bounds[1::4], bounds[2::4], bounds[3::4] = found.starts, found.is_at, found.is_at + 1, found.end_at
    bounds[-1] = len(found.data)
    pieces = pa.Array.from_buffers(pa.string(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(found.data)])
    values = pieces.slice(2)
    names = _regular_names(found, rows)
    if names is not None:
        return Properties(names, _NONE, _NONE, values, rows, _STEP, is_regular=True)
    coded = pieces.take(pa.array(np.arange(0, len(pieces), _STEP))).dictionary_encode()
    names, ids = coded.dictionary.to_pylist(), coded.indices.to_numpy().astype(np.int64)
    owners = np.searchsorted(found.offsets[1:], found.starts, side="right")
    if np.bincount(owners * len(names) + ids).max() > 1:  # a name stands twice in a row
        return None
    return Properties(names, ids, owners, values, rows, _STEP)


class _Found(NamedTuple):
    """The entries of well-formed texts: where each starts, where its U+0001 and its U+0002 are, and where the rows are, in ``data``."""

    data: Octets
    offsets: Ints
    starts: Ints
    is_at: Ints
    end_at: Ints


def _find_entries(texts: pa.Array) -> _Found | None:
    """Find the entries of texts that all are as RocketMQ writes them; None when one is not."""
    offsets = offsets_of(texts).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        none = np.zeros(0, np.int64)
        return _Found(np.zeros(0, np.uint8), offsets - first, none, none, none)
    data = np.frombuffer(texts.buffers()[2], np.uint8)[first:last]
    offsets = offsets - first
    separators = np.flatnonzero((data - 1) < 2)  # 1 or 2; 0 wraps round to 255
    if len(separators) % 2 or not len(separators):
        return None
    kinds = data[separators]
    is_at, end_at = separators[::2], separators[1::2]
    starts = np.concatenate(([0], end_at[:-1] + 1))
    if (kinds[::2] != 1).any() or (kinds[1::2] != 2).any() or (is_at == starts).any() or (end_at == is_at + 1).any():
        return None
    row_ends = offsets[1:][np.diff(offsets) > 0]
    if (data[row_ends - 1] != 2).any():
        return None
    return _Found(data, offsets, starts, is_at, end_at)


def _is_utf8(data: Octets) -> bool:
    """Say whether texts are UTF-8 one by one: they are when all are together, as the separators between them are ASCII."""
    if data.max(initial=0) < 0x80:
        return True
    try:
        data.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _regular_names(found: _Found, rows: int) -> list[str] | None:
    """Return the names of every row, when they are the same in all."""
    data, offsets, starts, is_at, _ = found
    per_row, rest = divmod(len(starts), rows)
    if rest or per_row > _MAX_REGULAR or not np.array_equal(starts[::per_row], offsets[:-1]):
        return None
    widths = (is_at - starts).reshape(rows, per_row)
    if not (widths == widths[0]).all():
        return None
    names = []
    for place, width in enumerate(widths[0].tolist()):
        each = cells(data, f"S{width}")[starts[place::per_row]]
        if not (each == each[0]).all():
            return None
        names.append(data[starts[place] : is_at[place]].tobytes().decode())
    return names if len(set(names)) == per_row else None
