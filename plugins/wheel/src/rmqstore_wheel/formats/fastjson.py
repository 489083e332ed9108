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
from typing import Any

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats.binary_columns import Bytes

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


def loads(data: Bytes | str, what: str) -> dict[str, Any]:
    """Read an object; bare keys become strings.

    Raises:
        CorruptStoreError: the text is no object; ``what`` names it.
    """
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
        found = json.loads(_STRING_OR_BARE_KEY.sub(_quote_bare, text))
    except (ValueError, RecursionError) as error:
        raise CorruptStoreError(f"{what} is not readable as JSON: {error}") from None
    if not isinstance(found, dict):
        raise CorruptStoreError(f"{what} is a JSON {type(found).__name__} where an object is expected")
    return found


def _quote_bare(match: re.Match[str]) -> str:
    return match[0] if match[2] is None else f"{match[1]}{json.dumps(match[2])}"


class Fields:
    """An object that was read, with access to its fields by type; fields that are missing or null have defaults.

    Every error is a :class:`CorruptStoreError` that names the object and the field.
    """

    def __init__(self, value: Any, what: str) -> None:
        if not isinstance(value, dict):
            raise CorruptStoreError(f"{what} is {_shown(value)} where an object is expected")
        self._values: dict[str, Any] = value
        self._what = what

    @classmethod
    def read(cls, data: Bytes | str, what: str) -> Fields:
        """Read a text that is one object."""
        return cls(loads(data, what), what)

    def _get(self, names: tuple[str, ...]) -> Any:
        return next((value for name in names if (value := self._values.get(name)) is not None), None)

    def integer(self, *names: str, bits: int = 64) -> int:
        """Return the first of these fields that is there, 0 when none is. fastjson takes numbers in quotes as well."""
        value = self._get(names)
        return 0 if value is None else _integer(value, f"{self._what}, field {names[0]!r}", bits)

    def optional_integer(self, name: str) -> int | None:
        """Return a field, None when it is not there."""
        return None if self._get((name,)) is None else self.integer(name)

    def text(self, *names: str) -> str | None:
        """Return the first of these fields that is there; a number is taken as its digits."""
        value = self._get(names)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise CorruptStoreError(f"{self._what}, field {names[0]!r}: {_shown(value)} where a text is expected")

    def integers(self, *names: str) -> list[int] | None:
        """Return a list of integers, None when it is not there."""
        value = self._get(names)
        if value is None:
            return None
        what = f"{self._what}, field {names[0]!r}"
        if not isinstance(value, list):
            raise CorruptStoreError(f"{what}: {_shown(value)} where a list is expected")
        return [_integer(item, what, 64) for item in value]

    def object(self, name: str) -> Fields | None:
        """Return a field that is an object, None when it is not there."""
        value = self._values.get(name)
        return None if value is None else Fields(value, f"{self._what}, field {name!r}")

    def objects(self, name: str) -> dict[str, Fields]:
        """Return a map of objects; empty when it is not there."""
        outer = self.object(name)
        return {} if outer is None else {key: Fields(item, f"{self._what}, {name!r} of {key!r}") for key, item in outer._values.items()}

    def numbered(self) -> dict[int, Fields]:
        """Return all fields, which are objects by integers."""
        return {_integer(key, f"{self._what}, key", 64): Fields(value, f"{self._what}, {key}") for key, value in self._values.items()}

    def integer_map(self, name: str) -> dict[int, int] | None:
        """Return a map of integers to integers, None when it is not there."""
        found = self.object(name)
        return None if found is None else found.as_integers()

    def as_integers(self) -> dict[int, int]:
        """Return all fields, which are integers by integers."""
        what = f"{self._what}, key"
        return {_integer(key, what, 64): _integer(value, f"{what} {key}", 64) for key, value in self._values.items()}


def _integer(value: Any, what: str, bits: int) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value, re.ASCII):
        value = int(value)
    if type(value) is not int or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise CorruptStoreError(f"{what}: {_shown(value)} where an integer of {bits} bits is expected")
    return value


def _shown(value: Any) -> str:
    return repr(value)[:60]
