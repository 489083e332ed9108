"""Hard values: names, ids, keys, tags, properties, bodies, marks and times that engines are tempted to cut, fold, glue, round or confuse.

Values come in *families*. The members of a family differ in one way only: in their last byte at the limit, in the case of a letter, in the
composition of an accent, by a leading zero; or they have one hash in common (Java's, CRC-32). So an engine that takes two of them for one
fails wherever a case tells them apart. :class:`Data` draws one family for each kind of value and gives its members to labels, so a case
speaks of ``t``, ``g`` and ``m1`` and the store holds something else.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from rmqstore.message import MAX_GROUP_KEY_BYTES, MAX_ID_BYTES, MAX_MARK_BYTES, MAX_NAME_BYTES, MAX_TIME_MS

T = TypeVar("T")


class Family(NamedTuple, Generic[T]):
    """Values that are alike: ``member(0)``, ``member(1)`` … are all different."""

    name: str
    member: Callable[[int], T]


# ---------------------------------------------------------------- how members differ


def _listed(*values: str) -> Callable[[int], str]:
    """Give these values first, then the first one with a number behind it."""
    return lambda index: values[index] if index < len(values) else f"{values[0]}{index}"


def _spelled(left: str, right: str, digits: int) -> Callable[[int], str]:
    """Write a number with two digits of any text; with two texts of equal length and hash, all numbers have one hash."""

    def member(index: int) -> str:
        text = "".join((left, right)[index >> digit & 1] for digit in range(digits))
        return text if index < 1 << digits else f"{text}{index}"

    return member


def _up_to(limit: int, letter: str = "x") -> Callable[[int], str]:
    """Give texts of exactly ``limit`` bytes that differ in the last few."""
    head = letter * ((limit - 7) // len(letter.encode()))
    digits = limit - len(head.encode())
    return lambda index: f"{head}{index:0{digits}d}"


def _growing(letter: str, limit: int) -> Callable[[int], str]:
    """Give texts each of which begins with all those before it."""
    return lambda index: letter * (index + 1) if index < limit else f"{letter * limit}{index}"


_JAVA: Final = ("Aa", "BB")
_CRC: Final = ("plumless", "buckeroo")

_NAMES: Final[tuple[Family[str], ...]] = (
    Family("plain", lambda index: f"name{index}"),
    Family("each begins with the one before", _growing("a", 100)),
    Family("upper and lower case", _spelled("a", "A", 17)),
    Family("one Java hash", _spelled(*_JAVA, 17)),
    Family("one CRC-32", _spelled(*_CRC, 15)),
    Family(
        "separators",
        _listed("a|b", "a", "b|c", "b", "c", "a|", "|b", "|", "a-b", "a_b", "a%b", "aXb", "-", "_", "%", "%%", "a||b", "a|b|c"),
    ),
    Family("numbers", _listed("1", "01", "10", "9", "-1", "0", "00", "1_0", "9007199254740993", "9007199254740992", "-0")),
    Family(
        "nearly reserved", _listed("%RETRY", "RETRY%", "%DLQ", "%dlq%g", "%retry%g", "rmq_sys", "RMQ_SYS_", "%PARKED", "SCHEDULE_TOPIC_XXX")
    ),
    Family("words of languages", _listed("None", "null", "true", "nan", "NULL", "undefined", "none", "False", "inf")),
)
"""Members made of what a name may hold, by what is alike about them."""

_WORDS: Final[tuple[Family[str], ...]] = (
    Family("composed and not", _spelled("é", "e\u0301", 17)),
    Family(
        "equal when folded", _listed("straße", "strasse", "STRASSE", "ﬁn", "fin", "K", "\u212a", "k", "İ", "i̇", "ı", "i", "Å", "\u212b")
    ),
    Family("beyond the first plane", lambda index: "".join(chr(0x1F600 + (index >> shift & 63)) for shift in (12, 6, 0))),
    Family(
        "blanks that are not ASCII",
        _listed("a", "a\u00a0", "\u00a0a", "a\u2028", "a\x85", "\ufeffa", "a\u200b", "a\u3000", "a\x7f", "\u200ba"),
    ),
    Family(
        "separators of paths and lists",
        _listed("a:b", "a/b", "a+b", "a,b", "a;b", "a=b", "a#b", "../a", "a\\b", "a@b", "a", "b", "/", ":", "#"),
    ),
    Family("quotes", _listed("'", '"', "''", "\\", "\\\\", "%00", "{}", "<a>", "$1", "`", "a'b", "?", "*a", "&amp;")),
    Family("numbers beyond 2^53", lambda index: str(2**53 + index)),
    Family("numbers as text", _listed("1", "1.0", "01", "1e0", "+1", "10", "9", "0x1", "-1", "1L", "NaN", "١")),
    Family("hexadecimal", lambda index: f"{index:034x}" if index % 2 else f"{index + 2**132 - 1:034X}"),
)
"""Members of which a name may hold nothing: ids, keys and message groups may."""


def _words(limit: int) -> list[Family[str]]:
    own = [
        Family("at the limit", _up_to(limit)),
        Family("at the limit, two bytes a letter", _up_to(limit, "é")),
        Family("at the limit, four bytes a letter", _up_to(limit, "😀")),
    ]
    return [*_NAMES, *_WORDS, *own]


LONG_WORD_BYTES: Final = 700
"""Of long keys and tags: longer than a key of LMDB may be."""


def _without_bars(member: Callable[[int], str]) -> Callable[[int], str]:
    """Leave out the sign that filters put between tags."""
    return lambda index: member(index).replace("|", "\u00a6")


# ---------------------------------------------------------------- bodies, properties, marks, times

_MAGIC: Final = bytes.fromhex("daa320a7")
"""What every record of RocketMQ's commit log has in its head (``MessageDecoder.MESSAGE_MAGIC_CODE``)."""

_BORDERS: Final = (511, 512, 513, 1023, 1024, 4095, 4096, 4097, 8192, 16_384, 65_535, 65_536, 65_537)


def _sized(index: int) -> bytes:
    """Return a body that ends beside a border of pages and blocks; beyond the first ones they are short."""
    size = _BORDERS[index] if index < len(_BORDERS) else 33
    return hashlib.shake_128(b"%d" % index).digest(size)


BODIES: Final[tuple[Family[bytes], ...]] = (
    Family("plain", lambda index: b"body %d" % index),
    Family("one byte, then two", lambda index: bytes([index]) if index < 256 else b"%d" % index),
    Family("zeros", lambda index: bytes(index + 1) if index < 4096 else b"\0%d" % index),
    Family("zeros at the end", lambda index: b"x%d" % index + bytes(1 + index % 7)),
    Family("blanks around", lambda index: b" \t%d\r\n " % index),
    Family("not UTF-8", lambda index: b"\xff\xfe%d\xc3" % (index // 64) + bytes([0x80 + index % 64]) * 2),
    Family("beside the borders of pages", _sized),
    Family("one CRC-32", lambda index: _spelled(*_CRC, 17)(index).encode()),
    Family("looks like a record", lambda index: b"\0\0\0\x60" + _MAGIC + b"\0\0\0%d" % index + b"RMQS_FRAME\x011\x02" + _MAGIC),
    Family("looks compressed", lambda index: b"x\x9c\x1f\x8b%d" % index),
    Family("looks like JSON", lambda index: b'{"n": %d, "e": "\\u00e9"}' % (2**53 + index)),
)

_ODD_PROPERTIES: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("none", {}),
    ("one", {"n": "7"}),
    ("names that differ in case", {"n": "1", "N": "2", "name": "3", "Name": "4", "NAME": "5"}),
    ("composed and not", {"é": "e\u0301", "e\u0301": "é", "ﬁ": "fi", "fi": "ﬁ"}),
    ("blanks around", {" a": " x ", "a ": "\tx\t", "a": "\nx\r\n", "\u00a0": "\u2028"}),
    ("control characters", {"nul": "\0", "\0": "nul", "bell": "\a\b\x03\x04", "del": "\x7f", "a\0b": "a\0"}),
    (
        "nearly the system's",
        {"keys": "k", "Tags": "t", "KEYS ": "x", "TAGS2": "y", "DELAYED": "1", "RMQS": "z", "uniq_key": "u", "__crc32#": "1"},
    ),
    (
        "numbers",
        {"big": "9007199254740993", "neg": "-0", "float": "0.1", "exp": "1e400", "lead": "007", "hex": "0x7", "nan": "NaN", "bool": "true"},
    ),
    ("values like nothing", {"none": "None", "null": "null", "undefined": "undefined", "brackets": "{}[]"}),
    ("separators", {"a=b": "c=d", "a:b": "c;d", "a,b": "c|d", 'a"b': "c'd", "\\": "\\\\", "a\x03b": "a\x04b"}),
    ("many", {f"p{number}": str(number) for number in range(80)}),
    ("long", {"long": "x" * 9000, "x" * 300: "y", "astral": "😀" * 200}),
    ("turned round", {f"z{9 - number}": f"{number}" for number in range(10)}),
)
"""Properties by what is odd about them; they come out in any order, as a mapping has none."""


def _numbered(properties: dict[str, str], index: int) -> dict[str, str]:
    return {**properties, "row": f"{index}"} if properties else {}


PROPERTIES: Final[tuple[Family[dict[str, str]], ...]] = tuple(
    Family(name, functools.partial(_numbered, found)) for name, found in _ODD_PROPERTIES
)

MARKS: Final[tuple[Family[bytes], ...]] = (
    Family("plain", lambda index: b"mark %d" % index),
    Family("zeros", lambda index: bytes(index + 1) if index < MAX_MARK_BYTES else b"%d" % index),
    Family("each begins with the one before", lambda index: _growing("m", MAX_MARK_BYTES - 9)(index).encode()),
    Family("at the limit", lambda index: _up_to(MAX_MARK_BYTES)(index).encode()),
    Family("one CRC-32", lambda index: _spelled(*_CRC, 17)(index).encode()),
    Family("upper and lower case", lambda index: _spelled("a", "A", 17)(index).encode()),
    Family("not UTF-8", lambda index: b"\xff\x00%d\xfe" % (index // 64) + bytes([0x80 + index % 64]) * 2),
    Family("separators", lambda index: _listed("a|b", "a", "b", "|", "a:b", "a\x01b", "a\x02b", "\n", "a\n")(index).encode()),
)

BORN_TIMES: Final[tuple[Family[int], ...]] = (
    Family("from 0 on", lambda index: index),
    Family("beside 2^53", lambda index: 2**53 + index),
    Family("up to the limit", lambda index: MAX_TIME_MS - index),
    Family("beside 2^31 and 2^32", lambda index: 2**31 + index if index % 2 else 2**32 + index),
    Family("not whole seconds", lambda index: 1_699_999_999_001 + 7 * index),
)

NAMES: Final[tuple[Family[str], ...]] = (*_NAMES, Family("at the limit", _up_to(MAX_NAME_BYTES)))
IDS: Final[tuple[Family[str], ...]] = tuple(_words(MAX_ID_BYTES))
MESSAGE_GROUPS: Final[tuple[Family[str], ...]] = tuple(_words(MAX_GROUP_KEY_BYTES))
KEYS: Final[tuple[Family[str], ...]] = tuple(_words(LONG_WORD_BYTES))
TAGS: Final[tuple[Family[str], ...]] = tuple(Family(each.name, _without_bars(each.member)) for each in KEYS)

GLUED: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("a|b", "c", "a", "b|c"),
    ("a-b", "c", "a", "b-c"),
    ("a_b", "c", "a", "b_c"),
    ("a%b", "c", "a", "b%c"),
    ("a||b", "c", "a", "b||c"),
    ("1", "11", "11", "1"),
    ("ab", "c", "a", "bc"),
    ("g", "t", "t", "g"),
)
"""Topic, group, and another topic and group, that make one text where they are joined by a sign or by none."""


# ---------------------------------------------------------------- drawing

_FAMILIES: Final[Mapping[str, tuple[Family[Any], ...]]] = {
    "topic": NAMES,
    "group": NAMES,
    "id": IDS,
    "key": KEYS,
    "tag": TAGS,
    "message group": MESSAGE_GROUPS,
    "attempt": IDS,
    "body": BODIES,
    "properties": PROPERTIES,
    "mark": MARKS,
    "born": BORN_TIMES,
}


class _Kind(Generic[T]):
    """A method of :class:`Data` that gives the values of one kind."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, data: Data, _: type[Data]) -> Callable[[str], T]:
        return lambda label: data._value(self._name, label)


class Data:
    """The values of one case: for each kind a family, drawn by ``seed``, whose members go to labels in the order of their first use.

    A label of a kind has one value as long as the case runs; two labels have two values.

    Attributes:
        usual_topic, usual_group: what calls mean that name none.
        families: by kind of value.
    """

    def __init__(self, seed: str, usual_topic: str = "t", usual_group: str = "g") -> None:
        chance = random.Random(seed)
        self.usual_topic = usual_topic
        self.usual_group = usual_group
        self.families: dict[str, Family[Any]] = {kind: chance.choice(families) for kind, families in _FAMILIES.items()}
        self._values: dict[str, dict[str, Any]] = {kind: {} for kind in _FAMILIES}
        self._members = {kind: itertools.count() for kind in _FAMILIES}
        self._labels: dict[str, str] = {}

    def _value(self, kind: str, label: str) -> Any:
        values = self._values[kind]
        if label not in values:
            # Threads draw at once: none takes a member that another one has.
            values.setdefault(label, self.families[kind].member(next(self._members[kind])))
        return values[label]

    topic = _Kind[str]("topic")
    group = _Kind[str]("group")
    key = _Kind[str]("key")
    tag = _Kind[str]("tag")
    message_group = _Kind[str]("message group")
    attempt = _Kind[str]("attempt")
    body = _Kind[bytes]("body")
    properties = _Kind[dict[str, str]]("properties")
    mark = _Kind[bytes]("mark")
    born_ms = _Kind[int]("born")
    """Of a label: its value of a kind. No filter can spell all tags, and a message with long keys has room for all properties."""

    def id(self, label: str) -> str:
        """Return a message id; :meth:`label` gives the label back."""
        found: str = self._value("id", label)
        self._labels[found] = label
        return found

    def label(self, message_id: str) -> str:
        """Return the label of an id, and an id that is none of these as it is."""
        return self._labels.get(message_id, message_id)

    def fields(self, label: str) -> dict[str, Any]:
        """Return what a message has of which a case says nothing."""
        return {
            "body": self.body(label),
            "tag": self.tag(label),
            "keys": (self.key(label), self.key("common")),
            "properties": self.properties(label),
            "born_ms": self.born_ms(label),
        }

    def __str__(self) -> str:
        drawn = (f"{kind}s: {self.families[kind].name}" for kind, values in self._values.items() if values)
        return "; ".join([f"topic {self.usual_topic}, group {self.usual_group}", *drawn])


class Plain(Data):
    """Values that are their labels: for programs that are no case of a run."""

    def __init__(self) -> None:
        super().__init__("plain")

    def _value(self, kind: str, label: str) -> Any:
        return label.encode() if kind == "mark" else label

    def fields(self, label: str) -> dict[str, Any]:
        return {"body": b"body " + label[1:].encode()}


class _Run:
    """What is drawn from now on in this process: the seed of the run, None where none has begun, and the values of the case that runs."""

    seed: str | None = None
    data: Data = Plain()


def begin_run(seed: int) -> None:
    """Draw by this seed from now on; to be called before the cases are imported, which draw names."""
    _Run.seed = str(seed)


def begin_case(module: str, name: str) -> Data:
    """Draw the values of the case ``name`` of a module, and return them."""
    _Run.data = Data(f"{_Run.seed} {module} {name}", topics(module, 1)[0], groups(module, 1)[0])
    return _Run.data


def drawn() -> Data:
    """Return the values of the case that runs."""
    return _Run.data


def topics(module: str, count: int) -> list[str]:
    """Return names of topics for the cases of a module, by the run's seed; calls that name no topic mean the first one."""
    return _names_of("topics", module, count, "tusvw")


def groups(module: str, count: int) -> list[str]:
    """Return names of groups for the cases of a module, by the run's seed; calls that name no group mean the first one."""
    return _names_of("groups", module, count, "ghfij")


def _names_of(what: str, module: str, count: int, plain: str) -> list[str]:
    if _Run.seed is None:
        return list(plain[:count])
    family = random.Random(f"{_Run.seed} {what} of {module.rpartition('.')[2]}").choice(NAMES)
    return [family.member(index) for index in range(count)]
