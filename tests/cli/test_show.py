"""Tables and texts: how they are laid out at a width, in a pipe, and with what messages may hold."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from rich.text import Text

from rmqstore.cli import show
from rmqstore.cli.show import Column
from tests.cli.conftest import Command

COLUMNS = (Column("name"), Column("n", right=True), Column("id", long=True), Column("receipt", long=True))
ROWS = [["first", "1", "i" * 20, "r" * 40], ["second", "1,000", "", "r"]]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    show.table(COLUMNS, ROWS)
    return capsys.readouterr().out.splitlines()


def test_a_table_in_a_pipe(cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys) == [
        "name        n  id                    receipt",
        f"first       1  {'i' * 20}  {'r' * 40}",
        f"second  1,000  {' ' * 20}  r",
    ]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (77, ["name        n  id                    receipt", f"first       1  {'i' * 20}  {'r' * 40}"]),
        (76, ["name        n  id", f"first       1  {'i' * 20}", f"    receipt  {'r' * 40}"]),
        (30, ["name        n", "first       1", f"    id       {'i' * 20}", f"    receipt  {'r' * 40}"]),
        (5, ["name        n", "first       1", f"    id       {'i' * 20}", f"    receipt  {'r' * 40}"]),
    ],
)
def test_a_table_on_a_terminal(
    cli: Command,
    terminal: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
    columns: int,
    expected: list[str],
) -> None:
    terminal(columns)
    shown = [Text.from_ansi(line).plain for line in lines(capsys)]
    assert shown[: len(expected)] == expected


def test_cells_are_numbers_nothing_or_texts_that_drive_no_terminal(cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    show.table((Column("a", right=True), Column("b"), Column("c")), [(1234, None, "\x1b[2J")])
    assert capsys.readouterr().out.splitlines()[1] == "1,234     \\x1b[2J"


def test_wide_characters_are_aligned(cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    show.table((Column("a"), Column("b")), [["漢字", "x"], ["abcd", "y"]])
    assert capsys.readouterr().out == "a     b\n漢字  x\nabcd  y\n"


@pytest.mark.parametrize(
    ("body", "start"),
    [
        (b"short", "short"),
        (b"two\n lines\t!", "two lines !"),
        (b"x" * 100, "x" * 59 + "…"),
        ("ü".encode() * 1000, "ü" * 59 + "…"),
        (b"\x00", "base64:AA=="),
        (b"\xff" * 100, "base64:" + "/" * 60 + "…"),
        (b"\x1b[2J", "base64:G1sySg=="),
        (b"x" + "漢".encode() * 300, "x" + "漢" * 58 + "…"),
    ],
)
def test_the_start_of_a_body(body: bytes, start: str) -> None:
    assert show.body_start(body) == start


def test_counts() -> None:
    assert [show.count(number, "message") for number in (0, 1, 1234)] == ["0 messages", "1 message", "1,234 messages"]
    assert show.count(2, "batch", "batches") == "2 batches"


def test_a_document_with_a_list_of_any_length(cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    for items in ([], [{"a": 1}], [{"a": 1}, {"b": [2]}]):
        show.document_with({"first": {"x": []}}, "items", items)
        assert json.loads(capsys.readouterr().out) == {"first": {"x": []}, "items": items}
