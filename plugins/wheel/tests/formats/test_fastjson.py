"""JSON as fastjson has it: what it writes, what is read, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats.fastjson import Fields, dumps, loads

VALUE = {"b": {0: 5, 1: None, 2: -7}, "a": ["x", 1, None, True], "n": None, "e": {}, "l": [], "s": {"q", "p"}}


def test_pretty() -> None:
    assert dumps(VALUE) == (
        '{\n\t"b":{0:5,2:-7\n\t},\n\t"a":[\n\t\t"x",\n\t\t1,\n\t\tnull,\n\t\ttrue\n\t],\n\t"e":{},\n\t"l":[],\n\t"s":["p","q"]\n}'
    )


def test_beans_under_bare_keys() -> None:
    assert dumps({"q": {3: {"x": 1}}}) == '{\n\t"q":{3:{\n\t\t\t"x":1\n\t\t}\n\t}\n}'


def test_strings() -> None:
    assert dumps('a"\\\n\x01\x7f/é\u2028') == '"a\\"\\\\\\n\\u0001\\u007F/é\\u2028"'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"t@g":{0:12,1:7}}', {"t@g": {"0": 12, "1": 7}}),
        ("{ 0 : 5 ,\n\t-1:6}", {"0": 5, "-1": 6}),
        ("{name:{x:1}}", {"name": {"x": 1}}),
        ('{"a":"{0:1,b:2}","c":",d:1"}', {"a": "{0:1,b:2}", "c": ",d:1"}),
        ('{"a\\"{0:1":[1,2,{3:4}]}', {'a"{0:1': [1, 2, {"3": 4}]}),
        ('{"a":[1,2],3:4}', {"a": [1, 2], "3": 4}),
    ],
)
def test_bare_keys_are_read(text: str, expected: Any) -> None:
    assert loads(text, "it") == loads(text.encode(), "it") == expected


KEYS = st.text(max_size=6) | st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    st.text(max_size=6) | st.integers(-(2**63), 2**63 - 1) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


def stringed(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): stringed(item) for key, item in value.items()}
    return [stringed(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_is_written_is_read(value: dict[Any, Any]) -> None:
    assert loads(dumps(value).encode(), "it") == stringed(value)


@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=4))
def test_standard_json_is_read(value: dict[str, Any]) -> None:
    assert loads(json.dumps(stringed(value)), "it") == stringed(value)


@pytest.mark.parametrize("text", ["", "[1]", "5", "null", "{", '{"a":1', '{"a":}', "{a:b}", '{"a" 1}', "{0:1}}", '"', "\xff", "{" * 5000])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(CorruptStoreError, match="it is"):
        loads(text.encode("latin-1"), "it")


@given(st.text('{}[]:,"\\0a \n', max_size=40))
def test_garbage_is_a_typed_error(text: str) -> None:
    try:
        assert isinstance(loads(text, "it"), dict)
    except CorruptStoreError as error:
        assert "it is" in str(error)


def test_fields() -> None:
    fields = Fields.read('{"i":5,"s":"6","t":"x","l":[1,"2"],"m":{0:1},"o":{"a":{"i":1}},"n":null,"big":9223372036854775808,"f":1.5}', "it")
    assert fields.integer("i") == fields.integer("absent", "i") == 5
    assert fields.integer("s") == 6
    assert fields.integer("n") == fields.integer("absent") == 0
    assert fields.optional_integer("n") is None
    assert (fields.text("t"), fields.text("i"), fields.text("n")) == ("x", "5", None)
    assert (fields.integers("l"), fields.integers("n")) == ([1, 2], None)
    assert (fields.integer_map("m"), fields.integer_map("n")) == ({0: 1}, None)
    assert fields.objects("o")["a"].integer("i") == 1
    assert fields.objects("n") == {}
    for wrong in ("t", "l", "big", "f"):
        with pytest.raises(CorruptStoreError, match=f"it, field '{wrong}'"):
            fields.integer(wrong)
    with pytest.raises(CorruptStoreError, match="32 bits"):
        Fields.read('{"i":2147483648}', "it").integer("i", bits=32)
    for read in (fields.integers, fields.integer_map, fields.objects, fields.object):
        with pytest.raises(CorruptStoreError, match="it, field 't'"):
            read("t")  # type: ignore[operator]
    with pytest.raises(CorruptStoreError, match="where a text is expected"):
        fields.text("l")
    with pytest.raises(CorruptStoreError, match="key: 'a'"):
        fields.integer_map("o")
