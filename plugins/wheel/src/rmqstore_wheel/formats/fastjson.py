r"""JSON as RocketMQ's fastjson writes it, and reads it.

What differs from the standard: keys of maps that are integers in Java stand without quotes (``{0:5}``), the names of a bean come in
alphabetical order, null fields are left out, and the pretty form indents by tabs but does not begin a line before a bare key::

    {
    \t"offsetTable":{
    \t\t"topic@group":{0:5,1:7
    \t\t}
    \t}
    }
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats.binary_columns import Bytes

Byte: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**7), lt=2**7)]
Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
Long: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Java's integers, as :func:`read` checks them."""

T = TypeVar("T")

_ESCAPED = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029\ud800-\udfff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_STRING_OR_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*+"|(?<=[{,])(\s*+)([^\s"{}\[\]:,]++)(?=\s*+:)', re.DOTALL)


def dumps(value: Any) -> str:
    """Return a value as text in the pretty form: mappings in their own order, lists, sets, strings, ints, bools and None."""
    return _write(value, "\n")


@functools.lru_cache(4096)
def quote(text: str) -> str:
    """Return a string in quotes."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    found = match[0]
    if found in _SHORT:
        return _SHORT[found]
    units = found.encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _write(value: Any, line: str) -> str:
    """``line`` is what begins a line of the enclosing level."""
    if isinstance(value, str):
        return quote(value)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    inner = line + "\t"
    if isinstance(value, Mapping):
        items = [
            f"{inner}{quote(key)}:{_write(item, inner)}" if isinstance(key, str) else f"{key}:{_write(item, inner)}"
            for key, item in value.items()
            if item is not None
        ]
        return f"{{{','.join(items)}{line if items else ''}}}"
    if isinstance(value, set | frozenset):
        return f"[{','.join(_write(item, line) for item in sorted(value))}]"
    if isinstance(value, list | tuple):
        items = [inner + _write(item, inner) for item in value]
        return f"[{','.join(items)}{line if items else ''}]"
    raise TypeError(f"fastjson cannot write a {type(value).__name__}")


def read(data: Bytes | str, kind: type[T], what: str, old_names: Mapping[str, str] = {}) -> T:
    """Read an object as a struct; fields that are missing or null have their defaults. fastjson takes numbers in quotes as well.

    ``old_names`` gives the names of today for those that it may have instead.

    Raises:
        CorruptStoreError: the text is no such object; ``what`` names it, and the field is named too.
    """
    fields = {old_names.get(name, name): value for name, value in loads(data, what).items()}
    try:
        return msgspec.convert(fields, kind, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise CorruptStoreError(f"{what}: {error}") from None


def loads(data: Bytes | str, what: str) -> dict[str, Any]:
    """Read an object without what is null in it; bare keys become strings.

    Raises:
        CorruptStoreError: the text is no object; ``what`` names it.
    """
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
        found = json.loads(_STRING_OR_BARE_KEY.sub(_quote_bare, text), object_hook=_without_nulls)
    except (ValueError, RecursionError) as error:
        raise CorruptStoreError(f"{what} is not readable as JSON: {error}") from None
    if not isinstance(found, dict):
        raise CorruptStoreError(f"{what} is a JSON {type(found).__name__} where an object is expected")
    return found


def _quote_bare(match: re.Match[str]) -> str:
    return match[0] if match[2] is None else f"{match[1]}{json.dumps(match[2])}"


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
