"""docs/formats.md: the pictures add up, and show what the codecs have."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rmqstore.contract.receipts import Receipt
from rmqstore_wheel import formats
from rmqstore_wheel.formats import commit_log, config_files, consume_queue, index_file, timer_log, wheel

PAGE = (Path(__file__).parents[4] / "docs" / "formats.md").read_text()
_PICTURE = re.compile(r"^```\noffset  type   field\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^(\d+|\+) +(i8|i16|i32|i64|u32|u64|b8|s) +\S", re.MULTILINE)
_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "u32": 4, "u64": 8, "b8": 8}


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def pictures(text: str) -> list[list[tuple[str, str]]]:
    """Return the (offset, type) pairs of every picture."""
    return [_FIELD.findall(picture) for picture in _PICTURE.findall(text)]


def test_there_are_pictures_and_every_line_is_read() -> None:
    found = _PICTURE.findall(PAGE)
    assert len(found) >= 10
    for picture in found:
        assert len(_FIELD.findall(picture)) == len(picture.splitlines())


@pytest.mark.parametrize("picture", pictures(PAGE), ids=str)
def test_offsets_add_up(picture: list[tuple[str, str]]) -> None:
    at: int | None = 0
    for offset, kind in picture:
        assert offset == ("+" if at is None else str(at))
        at = None if at is None or kind == "s" else at + _BYTES[kind]


def laid_out(dtype: np.dtype[np.void]) -> list[tuple[str, str]]:
    assert dtype.fields is not None
    return [(str(offset), f"i{8 * kind.itemsize}") for kind, offset, *_ in dtype.fields.values()]


@pytest.mark.parametrize(
    ("heading", "number", "dtype"),
    [
        ("Consume queue", 0, consume_queue.UNIT),
        ("Timer wheel", 0, wheel.SLOT),
        ("Timer log", 0, timer_log.UNIT),
        ("Index file", 1, index_file.entries_of(b"").dtype),
    ],
)
def test_units_are_those_of_the_codecs(heading: str, number: int, dtype: np.dtype[np.void]) -> None:
    assert pictures(section(heading))[number] == laid_out(dtype)


def test_lengths_are_those_of_the_codecs() -> None:
    def fixed(heading: str, number: int) -> int:
        return sum(_BYTES[kind] for offset, kind in pictures(section(heading))[number] if offset != "+" and kind != "s")

    assert fixed("Commit log", 0) == commit_log.FIXED_BYTES
    assert fixed("Commit log", 1) == commit_log.BLANK_BYTES
    assert fixed("Timer log", 1) == timer_log.BLANK_BYTES
    assert fixed("Timer check point", 0) == config_files.TIMER_CHECK_USED_BYTES
    assert fixed("Index file", 0) == index_file.HEADER_BYTES


def test_every_codec_has_its_picture() -> None:
    modules = {path.stem for path in Path(formats.__file__).parent.glob("*.py")} - {"__init__"}
    shared = {"binary_columns", "decimals", "messages"}
    assert sorted(name for name in modules - shared if f"`{name}`" not in PAGE) == []


def test_a_receipt_begins_as_the_page_says() -> None:
    receipt = Receipt("orders", "g", 3, 104, 100, 1_700_000_000_000, 60_000, 2, "broker-a", 1, 5, 4660)
    assert receipt.text().startswith("100 1700000000000 60000 5 2 broker-a 3 104 4660 ")
