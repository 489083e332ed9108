"""The model of the disk itself: what it says is left is what was written, as far as it was synced."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from rmqstore_conformance.power.content import PAGE_BYTES, Content, read_image, write_image
from rmqstore_conformance.power.fates import fates_of
from rmqstore_conformance.power.volume import SECTOR, Call, Fate, Volume, can_tear

ONES = b"1" * 4 * SECTOR


def volume_of(*calls: Call, synced: bool = True) -> Volume:
    """Return the volume of a file ``a`` of four sectors of ones, open as number 1, after further calls."""
    volume = Volume()
    durable = [Call("sync", file=1), Call("names")] if synced else []
    for call in [Call("make", "a", file=1), Call("write", file=1, data=ONES), *durable, *calls]:
        volume.do(call)
    return volume


def left(volume: Volume, **fates: Fate) -> dict[str, bytes]:
    """Return what is left, with the fate of each change by its number: ``n3``."""
    image = volume.image({int(name[1:]): fate for name, fate in fates.items()})
    return {path: bytes(content) for path, content in image.items() if content is not None}


def test_a_write_is_kept_dropped_or_torn_at_sectors() -> None:
    volume = volume_of(Call("write", file=1, offset=100, data=b"2" * 3 * SECTOR))
    (number,) = volume.pending()
    assert can_tear(volume.pending()[number])

    def twos(fate: Fate) -> list[int]:
        content = left(volume, **{f"n{number}": fate})["a"]
        return [content[at : at + SECTOR].count(b"2") for at in range(0, 4 * SECTOR, SECTOR)]

    assert twos(Fate.KEPT) == [SECTOR - 100, SECTOR, SECTOR, 100]
    assert twos(Fate.DROPPED) == [0, 0, 0, 0]
    assert twos(Fate.HEAD) == [SECTOR - 100, SECTOR, 0, 0]
    assert twos(Fate.TAIL) == [0, 0, SECTOR, 100]
    assert twos(Fate.COMB) == [0, SECTOR, 0, 100]
    assert twos(Fate.GAP) == [SECTOR - 100, SECTOR, 0, 100]


def test_a_file_goes_with_its_name() -> None:
    volume = volume_of(Call("sync", file=1), synced=False)
    (number,) = volume.pending()
    assert left(volume, **{f"n{number}": Fate.DROPPED}) == {}
    volume.do(Call("names"))
    assert volume.pending() == {}


def test_a_rename_is_whole_and_does_not_keep_the_content() -> None:
    volume = volume_of(Call("make", "new", file=2), Call("write", file=2, data=b"new"), Call("names"), Call("rename", "new", target="a"))
    content, name = volume.pending()
    assert left(volume) == {"a": b"new"}
    assert left(volume, **{f"n{content}": Fate.DROPPED}) == {"a": b""}
    assert left(volume, **{f"n{name}": Fate.DROPPED}) == {"a": ONES, "new": b"new"}


def test_a_rename_into_another_directory_is_whole() -> None:
    volume = volume_of(Call("directory", "d"), Call("names"), Call("rename", "a", target="d/b"))
    (number,) = volume.pending()
    assert left(volume) == {"d/b": ONES}
    assert left(volume, **{f"n{number}": Fate.DROPPED}) == {"a": ONES}


def test_a_settled_write_is_durable_and_an_older_one_is_not() -> None:
    """A write through ``O_DSYNC`` takes nothing along that was written before it."""
    volume = volume_of(Call("write", file=1, data=b"222"), Call("write", file=1, offset=2, data=b"33"), Call("settle", file=1))
    (first,) = volume.pending()
    assert left(volume)["a"][:5] == b"22331"
    assert left(volume, **{f"n{first}": Fate.DROPPED})["a"][:5] == b"11331"


@pytest.mark.parametrize("names_follow", [False, True])
def test_the_sync_of_a_file_may_take_its_name_along(names_follow: bool) -> None:
    """But not the name that it gets by a rename, nor that of another file; a name that was removed since may be gone all the same."""
    volume = Volume(names_follow=names_follow)
    for name, file in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        volume.do(Call("make", name, file=file))
    for call in [Call("sync", file=1), Call("sync", file=3), Call("sync", file=4), Call("rename", "c", target="e"), Call("remove", "d")]:
        volume.do(call)
    lost = volume.image(dict.fromkeys(volume.pending(), Fate.DROPPED))
    assert set(lost) == ({"a", "c", "d"} if names_follow else set())
    assert set(volume.image({})) == {"a", "b", "e"}


def test_fates_hold_every_simple_case() -> None:
    writes = [Call("write", file=1, offset=number * SECTOR, data=bytes([50 + number]) * SECTOR) for number in range(3)]
    volume = volume_of(*writes)
    found = [{number: fate for number, fate in fates.items() if fate is not Fate.KEPT} for fates in fates_of(volume, 0, random.Random(1))]
    low = min(volume.pending())
    for dropped in ([], [0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]):
        assert {low + number: Fate.DROPPED for number in dropped} in found


_PLACES = st.integers(0, 3 * PAGE_BYTES)
_CHANGES = st.lists(
    st.tuples(_PLACES, st.one_of(st.none(), st.binary(min_size=1, max_size=20), st.just(b"\xaa" * PAGE_BYTES * 2))), max_size=8
)


@given(changes=_CHANGES)
def test_content_is_what_a_file_holds(changes: list[tuple[int, bytes | None]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sparse content against plain bytes: writes, and with None a new length."""
    content, plain = Content(), bytearray()
    for at, data in changes:
        if data is None:
            content.resize(at)
            del plain[at:]
            plain.extend(bytes(at - len(plain)))
        else:
            content.write(at, data)
            plain.extend(bytes(max(0, at + len(data) - len(plain))))
            plain[at : at + len(data)] = data
    assert bytes(content) == plain
    assert content.read(100, 5000) == plain[100:5100]
    root = tmp_path_factory.mktemp("content") / "x"
    write_image(root, {"a": content, "b": None})
    assert (root / "a").read_bytes() == plain
    again = read_image(root)
    assert again == {"a": content, "b": None}


def test_a_hole_is_not_read(tmp_path: Path) -> None:
    content = Content()
    content.write(1 << 40, b"x")
    content.to_file(tmp_path / "big")
    assert Content.of_file(tmp_path / "big") == content
    assert content.places == [1 << 40]
