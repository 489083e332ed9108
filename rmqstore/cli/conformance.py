"""``rmqstore conformance``: try to refute an engine, clause by clause, and write a report; needs the suite, ``rmqstore-conformance``."""

from __future__ import annotations

import enum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from rmqstore.cli import show
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import complete_engine, examples, imported

_STYLES: Final = {"pass": "green", "fail": "bold red", "declared absent": "dim", "not run": "yellow"}


class LevelName(enum.Enum):
    """How far a run goes."""

    CORE = "core"
    EXTENDED = "extended"
    FULL = "full"


class RecorderName(enum.Enum):
    """What records what a store writes, for the loss of power; fuse also sees what is written through mappings."""

    STRACE = "strace"
    FUSE = "fuse"


@examples(
    "rmqstore conformance memory",
    "rmqstore conformance acme --level extended --report acme.html --report acme.json",
    "rmqstore conformance acme --pop-engine memory",
    "rmqstore conformance --explain T6",
)
def conformance(
    name: Annotated[
        str | None,
        typer.Argument(metavar="ENGINE", help="Engine to refute; of the timers, if there are two.", autocompletion=complete_engine),
    ] = None,
    pop_engine: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="Engine of the pops, if it is another.", autocompletion=complete_engine)
    ] = None,
    level: Annotated[LevelName, typer.Option(help="How far to go.")] = LevelName.CORE,
    report: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Write a .json, .md or .html report.")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting of every store that is opened.")] = None,
    case: Annotated[str | None, typer.Option(metavar="WORDS", help="Only cases that match, as `pytest -k`.")] = None,
    seed: Annotated[str, typer.Option(metavar="N", help="Seed of all that is random; fresh: a new one.")] = "0",
    effort: Annotated[float, typer.Option(metavar="X", help="So many times the kills, disk states, failing calls.")] = 1.0,
    recorder: Annotated[RecorderName, typer.Option(help="Who sees what a store writes.")] = RecorderName.STRACE,
    suite_version: Annotated[str | None, typer.Option(help="Leave out cases that are newer.")] = None,
    plugin: Annotated[list[str] | None, typer.Option(metavar="MODULE", help="Module that announces the engine.")] = None,
    expect_failure: Annotated[list[str] | None, typer.Option(metavar="CASE=REASON", help="A case that must fail, and why.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes; more than one needs pytest-xdist.")] = 1,
    explain: Annotated[str | None, typer.Option(metavar="CLAUSE", help="Say what a clause promises, and its cases.")] = None,
) -> None:
    """Try to refute a storage engine, clause by clause.

    Ends with 3 when a clause is broken. The suite is a distribution of its own: pip install rmqstore-conformance.
    """
    command = imported("rmqstore_conformance.command", "the conformance suite cannot be imported", "rmqstore-conformance")
    if explain is not None:
        for line in command.explanation(explain):
            show.line(line)
        return
    if name is None:
        raise typer.BadParameter("name an engine; `rmqstore engines` lists them", param_hint="ENGINE")
    options = [("engine", name), ("pop-engine", pop_engine), ("level", level.value), ("recorder", recorder.value)]
    options += [("seed", seed), ("effort", str(effort)), ("suite-version", suite_version)]
    options += [("report", str(Path.cwd() / file)) for file in report or []]
    options += [("config", each) for each in setting or []]
    options += [("plugin", each) for each in plugin or []]
    options += [("expect-failure", each) for each in expect_failure or []]
    given = [word for option, value in options if value for word in (f"--rmq-{option}", value)]
    given += ["-k", case] if case else []
    is_broken = False
    for found in command.run(given, workers=workers):
        is_broken |= _tell(found, command)
    for file in report or []:
        show.line(f"report: {file}")
    if is_broken:
        raise typer.Exit(EXIT_NOT_DONE)


def _tell(found: Any, command: ModuleType) -> bool:
    """Print what came out for one pair of engines; returns whether something is broken."""
    for each in found.clauses:
        word = each.outcome.value
        counts = ", ".join(f"{number} {outcome.value}" for outcome, number in each.counts.items() if number)
        show.line(Text.assemble((f"{each.clause.id:4}", "bold"), (f"{word:16}", _STYLES.get(word, "")), f"{each.clause.title:40} {counts}"))
    show.line()
    for note in found.notes + command.not_run(found):
        show.line(f"note: {note}")
    for case, text in command.evidence(found):
        show.line(f"{case}: {text}")
    for text in command.failures(found):
        show.line(text)
    show.line(Text(found.headline, "bold"))
    return found.reached is None or found.reached < found.header.level
