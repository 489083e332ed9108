"""How much of what is wrong the suite notices, as a command: ``python -m rmqstore_conformance.proving.rates``.

``mutations`` changes the source of the ``memory`` engine and of the kit, one small change at a time; ``engines`` takes the wrong
engines that plug-in modules announce. Both add each verdict to a file of lines, which ``--judged`` names, and leave out what is judged
there already. ``rates`` makes the figures of docs/mutants.md of two such files.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rmqstore.errors import IllegalArgumentError
from rmqstore_conformance.proving.judging import (
    EngineVerdict,
    Judged,
    MutationVerdict,
    judge_all,
    judge_engine,
    judge_mutation,
    reach_of,
    wrong_engines,
)
from rmqstore_conformance.proving.operators import KIT, MEMORY, modules_of, sample

T = TypeVar("T")

_GROUNDS: Final = ("memory", "lmdb")


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """How many mutations of a module, or of an operator, ended how.

    Attributes:
        core: of those caught, by a case of the core.
        equivalent, closed: of those that survived; see :class:`Survivor`.
    """

    name: str
    caught: int
    core: int
    survived: int
    equivalent: int
    closed: int
    not_reached: int

    @property
    def counted(self) -> int:
        """How many a case runs through that are not equivalent."""
        return self.caught + self.survived - self.equivalent

    @property
    def rate(self) -> float | None:
        """The share of those noticed among those that count, by cases that were written since too; None: none counts."""
        return (self.caught + self.closed) / self.counted if self.counted else None


class Survivor(msgspec.Struct, frozen=True, kw_only=True):
    """A mutation that no case noticed, and what was found out about it.

    Attributes:
        triage: ``equivalent``: no user can tell; ``closed``: a case notices it by now; ``open``.
        why: in a line.
    """

    id: str
    function: str
    before: str
    after: str
    triage: str = "open"
    why: str = ""


class EngineTally(msgspec.Struct, frozen=True, kw_only=True):
    """How many wrong engines of a class were noticed, and by a case that names the broken clause."""

    name: str
    engines: int
    caught: int
    within: int
    core: int
    core_within: int


class Loose(msgspec.Struct, frozen=True, kw_only=True):
    """A wrong engine that was not noticed by a case of its clause; ``outside`` are the other cases that failed."""

    engine: str
    plugin: str
    clause: str
    what: str
    outside: list[str]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of docs/mutants.md.

    Attributes:
        seed, stillborn: of the sample of mutations; those that do not even open are left out of every rate.
        level, plugins: of the wrong engines, how far their runs went, and the modules that announce them.
    """

    seed: int
    stillborn: int
    modules: list[Tally]
    operators: list[Tally]
    survivors: list[Survivor]
    level: str
    plugins: list[str]
    kinds: list[EngineTally]
    clauses: list[EngineTally]
    loose: list[Loose]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except IllegalArgumentError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rmqstore_conformance.proving.rates", description="measure what the suite notices")
    commands = parser.add_subparsers(required=True)
    mutations = commands.add_parser("mutations", help="judge a sample of small changes of the source")
    mutations.set_defaults(run=_mutations)
    mutations.add_argument("--module", action="append", help="import name or pattern of modules; default: the memory engine and the kit")
    mutations.add_argument("--sample", type=int, default=150, help="so many mutations, evenly over modules and operators (%(default)s)")
    mutations.add_argument("--seed", type=int, default=1, help="of the sample (%(default)s)")
    mutations.add_argument("--ground", action="append", help=f"engine to try them with, in turn; default: {', '.join(_GROUNDS)}")
    engines = commands.add_parser("engines", help="judge the wrong engines of plug-in modules")
    engines.set_defaults(run=_engines)
    engines.add_argument("plugins", nargs="+", metavar="MODULE")
    engines.add_argument("--failures", type=int, default=10, help="give up after so many failures outside the clause; 0: run all cases")
    engines.add_argument("--within", action="store_true", help="run no cases but those that name the clause: some seconds an engine")
    for each in (mutations, engines):
        each.add_argument(
            "--again", action="append", default=[], metavar="X", help="judge this one again, or all that are, say, 'survived'"
        )
        each.add_argument("--judged", type=Path, required=True, help="file of lines to which each verdict is added")
        each.add_argument("--level", default="extended", choices=("core", "extended", "full"), help="%(default)s")
        each.add_argument("--jobs", type=int, default=1, choices=(1, 2), help="processes at a time (%(default)s)")
    rates = commands.add_parser("rates", help="make the figures of docs/mutants.md")
    rates.set_defaults(run=_rates)
    rates.add_argument("--mutations", type=Path, required=True, help="what was judged")
    rates.add_argument("--engines", type=Path, required=True, help="what was judged")
    rates.add_argument("--seed", type=int, default=1, help="of the sample")
    rates.add_argument("--into", type=Path, required=True, help="file of figures; what it says of survivors is kept")
    return parser


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# ---------------------------------------------------------------- judging


def _mutations(options: argparse.Namespace) -> None:
    modules = modules_of(options.module or (*MEMORY, *KIT))
    taken = sample(modules, options.sample, options.seed)
    judged = Judged(options.judged, MutationVerdict)
    judged.forget(options.again)
    reaches = {}
    for ground in options.ground or _GROUNDS:
        _tell(f"tracing {ground}")
        file = options.judged.with_name(f"reach-{ground}-{options.level}.json")
        reaches[ground] = reach_of(ground, options.level, modules, file)
    judge_all(taken, lambda mutation: judge_mutation(mutation, reaches, options.level), judged, options.jobs, _tell)
    _tell_tallies("operator", _by(judged.verdicts, lambda each: each.mutation.operator, {}))
    _tell_tallies("module", _by(judged.verdicts, lambda each: each.mutation.module, {}))
    for each in judged.verdicts:
        if each.verdict == "survived":
            _tell(f"survived: {each.id} {each.mutation.function}: {each.mutation.before} -> {each.mutation.after}")


def _engines(options: argparse.Namespace) -> None:
    judged = Judged(options.judged, EngineVerdict)
    judged.forget(options.again)
    for plugin in options.plugins:
        judge_all(
            wrong_engines(plugin),
            lambda wrong: judge_engine(wrong, options.level, options.failures, within_only=options.within),
            judged,
            options.jobs,
            _tell,
        )
    for name, by in (("kind", _kind), ("clauses", _letter)):
        for tally in _of_engines(judged.verdicts, by):
            _tell(f"{name} {tally.name}: {tally.caught} of {tally.engines} caught, {tally.within} within their clause")
    for verdict in judged.verdicts:
        if not verdict.within:
            _tell(f"{verdict.verdict}: {verdict.engine} ({verdict.clause}): {verdict.what} {', '.join(verdict.outside)}")


def _tell_tallies(name: str, tallies: Iterable[Tally]) -> None:
    for each in tallies:
        counts = f"{each.caught} caught ({each.core} by the core), {each.survived} survived, {each.not_reached} not reached"
        _tell(f"{name} {each.name}: {counts}")


# ---------------------------------------------------------------- figures


def _rates(options: argparse.Namespace) -> None:
    known = msgspec.json.decode(options.into.read_bytes(), type=Rates).survivors if options.into.exists() else []
    mutations = Judged(options.mutations, MutationVerdict).verdicts
    engines = Judged(options.engines, EngineVerdict).verdicts
    rates = rates_of(mutations, engines, known, options.seed)
    options.into.write_bytes(msgspec.json.format(msgspec.json.encode(rates), indent=1) + b"\n")


def rates_of(mutations: Sequence[MutationVerdict], engines: Sequence[EngineVerdict], known: Sequence[Survivor], seed: int) -> Rates:
    """Return the figures; ``known`` says what was found out about survivors."""
    triaged = {each.id: each for each in known}
    survived = [each.mutation for each in mutations if each.verdict == "survived"]
    survivors = [triaged.get(each.id) or msgspec.convert(each, Survivor, from_attributes=True) for each in survived]
    return Rates(
        seed=seed,
        stillborn=sum(each.verdict == "stillborn" for each in mutations),
        modules=_by(mutations, lambda each: each.mutation.module, triaged),
        operators=_by(mutations, lambda each: each.mutation.operator, triaged),
        survivors=survivors,
        level=max((each.level for each in engines), default=""),
        plugins=list(dict.fromkeys(each.plugin for each in engines)),
        kinds=_of_engines(engines, _kind),
        clauses=_of_engines(engines, _letter),
        loose=[msgspec.convert(each, Loose, from_attributes=True) for each in engines if not each.within],
    )


def _grouped(verdicts: Iterable[T], by: Callable[[T], str]) -> list[tuple[str, list[T]]]:
    groups: dict[str, list[T]] = defaultdict(list)
    for each in verdicts:
        groups[by(each)].append(each)
    return sorted(groups.items())


def _kind(verdict: EngineVerdict) -> str:
    return verdict.kind or verdict.plugin.rpartition(".")[2]


def _letter(verdict: EngineVerdict) -> str:
    return verdict.clause[:1]


def _by(verdicts: Iterable[MutationVerdict], by: Callable[[MutationVerdict], str], triaged: dict[str, Survivor]) -> list[Tally]:
    tallies = []
    for name, group in _grouped(verdicts, by):
        counts = Counter(each.verdict for each in group)
        found_out = Counter(triaged[each.id].triage for each in group if each.verdict == "survived" and each.id in triaged)
        tallies.append(
            Tally(
                name=name,
                caught=counts["caught"],
                core=sum(each.verdict == "caught" and each.level in ("core", "") for each in group),
                survived=counts["survived"],
                equivalent=found_out["equivalent"],
                closed=found_out["closed"],
                not_reached=counts["not reached"],
            )
        )
    return tallies


def _of_engines(verdicts: Iterable[EngineVerdict], by: Callable[[EngineVerdict], str]) -> list[EngineTally]:
    return [
        EngineTally(
            name=name,
            engines=len(group),
            caught=sum(each.verdict != "survived" for each in group),
            within=sum(bool(each.within) for each in group),
            core=sum(each.core for each in group),
            core_within=sum(each.core_within for each in group),
        )
        for name, group in _grouped(verdicts, by)
    ]


if __name__ == "__main__":
    sys.exit(main())
