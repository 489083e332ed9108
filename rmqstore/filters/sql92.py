"""SQL92 filters: RocketMQ's subset (``org.apache.rocketmq.filter``), and LIKE.

A property is a text, or NULL where a message has none of the name. Logic has three values; a message passes when the condition is TRUE.

=====================================  ==========================================================================================
``a = 5``, ``a <> 5``, ``a < 5`` …     compares numbers; NULL where the text of ``a`` is no number
``a = 'x'``, ``a <> 'x'``              compares texts; ``a = b`` too
``a < b`` …                            compares two properties as numbers
``a = TRUE``, ``a``                    is the text ``true`` in any case; every other text counts as FALSE
``a [NOT] BETWEEN 1 AND 5``            numbers and properties
``a [NOT] IN ('x', 'y')``              strings
``a [NOT] LIKE 'x%' [ESCAPE '!']``     ``%`` is any characters, ``_`` exactly one
``a [NOT] CONTAINS 'x'``               also STARTSWITH and ENDSWITH; an empty string is never found, and never missed
``a IS [NOT] NULL``                    never NULL itself
NOT, AND, OR, parentheses              in this order of strength, after comparisons
=====================================  ==========================================================================================

Where this differs from RocketMQ:

* A text that is no number is NULL in a comparison with a number. RocketMQ raises an error, and the message does not pass, whatever the
  rest of the condition says.
* Texts are compared with integers by value: ``5.5`` is above 5. RocketMQ reads the text as an integer, or raises an error. On the other
  side, ``NaN``, ``Infinity``, ``5f`` and texts with blanks are no numbers.
* NULL compared with anything is NULL. RocketMQ takes two missing properties as equal, and a present one as different from a missing one.
* CONTAINS, STARTSWITH and ENDSWITH on a missing property are NULL. RocketMQ takes them as FALSE, so that NOT around them passes.
* A property alone is TRUE when its text is ``true``. In RocketMQ it never is.
* ``NOT a = 5`` is ``NOT (a = 5)``. RocketMQ reads ``(NOT a) = 5``, which never passes, and refuses ``NOT a > 5``.
* A number and a string, or a boolean and either, are not compared at all: refused, where RocketMQ partly answers FALSE or raises an error.
* A sign stands before a number only; in RocketMQ a negated property is always NULL.
* ``0.0`` is a number, which RocketMQ refuses; bounds of BETWEEN are checked with their signs.
* LIKE and ESCAPE are new, and so are two keywords that name no property here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.filters.columns import ColumnReader
from rmqstore.filters.filter import Filter, Mask, PropertyColumns
from rmqstore.filters.grammar import parse
from rmqstore.filters.rows import tester_of
from rmqstore.filters.syntax import names_of
from rmqstore.filters.vectors import truths_of


class Sql92Filter(Filter):
    """A parsed SQL92 expression.

    Raises:
        Fault: the expression is none.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._condition = parse(expression)
        self._tester = tester_of(self._condition)
        self.names = names_of(self._condition)

    def matches(self, properties: Mapping[str, str]) -> bool:
        return self._tester(properties) is True

    def mask(self, columns: PropertyColumns, count: int) -> Mask:
        truths = truths_of(self._condition, ColumnReader(columns, count))
        if isinstance(truths, pa.Scalar):
            return np.full(count, truths.as_py() is True)
        mask: Mask = pc.fill_null(truths, False).to_numpy(zero_copy_only=False)
        return mask
