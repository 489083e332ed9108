"""Looking into the files of a RocketMQ 5 store, a broker's or the engine's own, without changing or locking any (``rmqstore inspect``)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rmqstore.contract import Inspection
from rmqstore_wheel.inspecting.survey import Survey
from rmqstore_wheel.inspecting.tables import sections

__all__ = ["inspect"]

_DIRECTORIES: Final = ("commitlog", "consumequeue", "timerlog")
_FILES: Final = ("timerwheel", "config/timercheck", "config/consumerOffset.json", "config/delayOffset.json")
_INNER: Final = "db"
"""Where the engine keeps its RocketMQ store below its own directory."""


def inspect(directory: Path, now_ms: int | None = None) -> Inspection | None:
    """Look at ``directory``; see :class:`rmqstore.contract.Inspector`.

    Without ``now_ms``, due times count from the read time of the timers' check point.
    """
    root = next((path for path in (directory, directory / _INNER) if _is_store(path)), None)
    if root is None:
        return None
    survey = Survey(root, now_ms)
    damage = survey.findings.all()
    if root != directory:
        damage = tuple(msgspec.structs.replace(each, file=f"{_INNER}/{each.file}") for each in damage)
    return Inspection(title=_title(survey, root != directory), sections=tuple(sections(survey)), damage=damage)


def _is_store(path: Path) -> bool:
    return any((path / name).is_dir() for name in _DIRECTORIES) or any((path / name).is_file() for name in _FILES)


def _title(survey: Survey, is_inner: bool) -> str:
    by_rmqstore = survey.frames.whole or survey.frames.torn
    what = "RocketMQ 5 store, written by rmqstore" if by_rmqstore else "RocketMQ 5 store"
    messages = sum(tally.messages for tally in survey.tallies.values())
    return f"{what}{f', in {_INNER}/' if is_inner else ''}: {messages} records in {len(survey.log.reports)} files of the commit log"
