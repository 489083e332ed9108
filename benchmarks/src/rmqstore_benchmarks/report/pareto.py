"""The Pareto front: the points that no other point beats in both coordinates."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the places of the points that no other one equals or beats in both coordinates while beating it in one, by falling x.

    More is better in both coordinates. Equal points are on the front together.
    """
    order = sorted(range(len(points)), key=lambda at: (-points[at][0], -points[at][1]))
    found: list[int] = []
    best = float("-inf")
    for at in order:
        y = points[at][1]
        if y > best or (found and points[at] == points[found[-1]]):
            found.append(at)
            best = y
    return found
