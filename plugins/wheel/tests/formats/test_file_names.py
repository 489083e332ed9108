"""Names of the files of a log."""

from __future__ import annotations

import pytest

from rmqstore.errors import CorruptStoreError, IllegalArgumentError
from rmqstore_wheel.formats.commit_log import file_name, start_offset


@pytest.mark.parametrize(
    ("offset", "name"), [(0, "00000000000000000000"), (1 << 30, "00000000001073741824"), (2**63 - 1, "09223372036854775807")]
)
def test_names(offset: int, name: str) -> None:
    assert file_name(offset) == name
    assert start_offset(name) == offset


@pytest.mark.parametrize("name", ["", "0", "0" * 19, "0" * 21, "x" * 20, "-0000000000000000001", "9" * 20, "٣" * 20])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(CorruptStoreError) as caught:
        start_offset(name)
    assert caught.value.file == name


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_no_file_starts_there(offset: int) -> None:
    with pytest.raises(IllegalArgumentError):
        file_name(offset)
