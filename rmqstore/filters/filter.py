"""What every filter is, whatever language it was written in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PropertyColumns: TypeAlias = Mapping[str, "pa.Array | pa.ChunkedArray"]
"""Property values by property name: one Arrow string per message, null where the message has no such property.

A name that is not there is a property that no message has.
"""

Mask: TypeAlias = npt.NDArray[np.bool_]
"""One bool per message: whether it passes."""


class Filter(ABC):
    """A parsed filter expression; immutable, so threads may share it.

    Attributes:
        expression: the text it was parsed from.
        names: the properties that the outcome depends on; no other needs to be decoded. The tag is ``TAGS``, the keys are
            ``KEYS``, the message id is ``UNIQ_KEY`` and the message group is ``__SHARDINGKEY``.
    """

    expression: str
    names: frozenset[str]

    @abstractmethod
    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties passes."""

    @abstractmethod
    def mask(self, columns: PropertyColumns, count: int) -> Mask:
        """Return which of ``count`` messages pass; the same answers as :meth:`matches`, for many at once.

        Raises:
            IllegalArgumentError: a column that the filter needs has not ``count`` rows.
            IllegalArgumentTypeError: a column that the filter needs holds no text.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"
