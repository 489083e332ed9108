"""JSON as fastjson has it: what it writes, what is read, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from rmqstore.errors import CorruptStoreError
from rmqstore_wheel.formats.fastjson import Int, Long, dumps, loads, read

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


class Bean(msgspec.Struct):
    i: Int = 0
    text: str | None = None
    m: dict[Long, Long] = {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"i":5}', Bean(5)),
        ('{"i":"-6","text":"x"}', Bean(-6, "x")),
        ('{"old":7,"i":null,"text":null,"m":{0:"1",2:null}}', Bean(7, None, {0: 1})),
        ("{}", Bean()),
    ],
)
def test_structs_are_read(text: str, expected: Bean) -> None:
    assert read(text, Bean, "it", {"old": "i"}) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"i":"x"}',
        '{"i":[]}',
        '{"i":1.5}',
        '{"i":2147483648}',
        '{"i":"2147483648"}',
        '{"m":{0:9223372036854775808}}',
        '{"m":{a:1}}',
        '{"m":5}',
        '{"text":[]}',
    ],
)
def test_wrong_fields_are_refused_by_name(text: str) -> None:
    with pytest.raises(CorruptStoreError, match=r"it: .* at `.*\$.(i|m|text)"):
        read(text, Bean, "it")
