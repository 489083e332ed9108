"""Bit rot: bytes of a closed store change by themselves; it must answer right or say so, never answer wrong (R6)."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore_conformance.faults.opener import Answer, Opener
from rmqstore_conformance.faults.script import LATER_MS, Play
from rmqstore_conformance.faults.showing import difference
from rmqstore_conformance.power.content import PAGE_BYTES, Image, write_image
from rmqstore_conformance.power.volume import SECTOR

KINDS: Final = ("flip", "zero")


class Rot(NamedTuple):
    """What happened to a file: a bit flipped at ``at``, the sector there zeroed, all behind it cut off, or it is gone."""

    path: str
    kind: str
    at: int

    def done_to(self, image: Image) -> Image:
        content = image[self.path]
        assert content is not None
        if self.kind == "missing":
            return {path: other for path, other in image.items() if path != self.path}
        damaged = content.copy()
        if self.kind == "cut":
            damaged.resize(self.at)
        elif self.kind == "flip":
            damaged.write(self.at, bytes((content.read(self.at, 1)[0] ^ (1 << self.at % 8),)))
        else:
            damaged.write(self.at, bytes(min(SECTOR, content.length - self.at)))
        return {**image, self.path: damaged}

    def __str__(self) -> str:
        what = {
            "flip": f"bit {self.at % 8} of byte {self.at} flipped",
            "zero": f"the sector at {self.at} zeroed",
            "cut": f"cut off at {self.at}",
            "missing": "gone",
        }
        return f"{self.path}: {what[self.kind]}"


def rots_of(image: Image, per_file: int, seed: int) -> Iterator[Rot]:
    """Yield damage to each file that is not empty, where it holds something."""
    chance = random.Random(seed)
    for path, content in sorted(image.items()):
        if content is None or not content.places:
            continue
        found = set()
        for _ in range(per_file):
            kind = chance.choice(KINDS)
            page = chance.choice(content.places)
            places = [at for at, byte in enumerate(content.read(page, PAGE_BYTES)) if byte]
            at = page + chance.choice(places)
            found.add(Rot(path, kind, at if kind == "flip" else at - at % SECTOR))
        yield from sorted(found)


def losses_of(image: Image) -> Iterator[Rot]:
    """Yield for each file that is not empty that it is gone, that it is empty, and that it ends in the middle or a byte early."""
    for path, content in sorted(image.items()):
        if content is not None and content.places:
            yield Rot(path, "missing", 0)
            yield from (Rot(path, "cut", at) for at in sorted({0, content.length // 2, content.length - 1}))


def pairs_of(image: Image, per_file: int, seed: int) -> Iterator[tuple[Rot, Rot]]:
    """Yield damage to each file together with damage to another one, which may be gone."""
    chance = random.Random(seed)
    rots = list(rots_of(image, per_file, seed))
    for rot in rots:
        others = [each for each in rots if each.path != rot.path]
        if others:
            other = chance.choice(others)
            yield rot, chance.choice((other, Rot(other.path, "missing", 0)))


def judge_rot(image: Image, play: Play, rots: Iterable[tuple[Rot, ...]], opener: Opener, folder: Path) -> tuple[Counter[str], list[str]]:
    """Open damaged stores; returns how often each outcome came, and what is wrong."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for number, together in enumerate(rots):
        path = folder / f"rotten-{number}"
        damaged = image
        for rot in together:
            damaged = rot.done_to(damaged)
        write_image(path, damaged)
        answer = opener.open(path, play.steps[-1].now_ms, go_on_ms=LATER_MS)
        outcome = outcome_of(answer, play)
        outcomes[outcome.partition(":")[0]] += 1
        shutil.rmtree(path)
        if outcome.startswith("wrong"):
            write_image(path, damaged)
            wrong.append(
                f"{' and '.join(map(str, together))}: expected the right answer or an error that names the file; {outcome}; {path}"
            )
    return outcomes, wrong


def outcome_of(answer: Answer, play: Play) -> str:
    """Say what a damaged store did: right, refused, told; or wrong and why."""
    expected = play.steps[-1].shown
    if answer.shown is None:
        if not answer.typed:
            return f"wrong: {answer.error}"
        is_corrupt = answer.error.startswith("CorruptStoreError")
        return "refused" if not is_corrupt or all(answer.place) else f"wrong: no file and offset in {answer.error}"
    if answer.shown == expected:
        return "right"
    # A damaged timer is parked when it is due.
    if any(shown["wrong"] or shown["parked"] for shown in (answer.shown, answer.gone_on) if shown is not None):
        return "told"
    return f"wrong: it shows {difference(answer.shown, expected)}"
