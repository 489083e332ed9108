"""Write docs/mutants.md from the mutants of the conformance suite and what was measured; with ``-`` as argument print it instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from pages import publish, table

from rmqstore_conformance.clauses import clauses
from rmqstore_conformance.proving import mutants_of_disks
from rmqstore_conformance.proving.mutants import MUTANTS, WITHOUT_A_MUTANT
from rmqstore_conformance.proving.operators import OPERATORS
from rmqstore_conformance.proving.planting import PREFIX, WrongEngine
from rmqstore_conformance.proving.rates import EngineTally, Rates, Survivor, Tally

FIGURES = Path(__file__).parent / "mutants.json"

HEAD = f"""\
# Mutants

Made by `docs/make_mutants.py` from `conformance/src/rmqstore_conformance/proving/`; change the texts there.

A suite that passes everything proves nothing. So it is tried on engines that are wrong: each is `memory` with one fault planted into it,
and is named with the cases that must notice that. A test of `rmqstore-conformance` runs those cases: each fails on the mutant, and passes
on `memory`. A mutant that is named with no case was written from the contract alone, and no quick case is known to notice it; a test tells
it from the sound engine by calls of the public API. [How much the suite notices](#how-much-the-suite-notices) is measured.

A mutant is an engine like others, called `{PREFIX}NAME`:

```
pytest --pyargs rmqstore_conformance --rmq-plugin rmqstore_conformance.proving.mutants --rmq-engine {PREFIX}fires_early
```

"""

OF_DISKS = f"""
## Engines that break their word in a crash

Made from `lmdb`, each right until the store is opened again, the process is killed, the power goes or a call to the system fails; the
[crash tools](crash-tools.md) must notice most of them. With `--rmq-plugin rmqstore_conformance.proving.mutants_of_disks` they are
engines called `{PREFIX}NAME`.

"""

TAIL = """
## Clauses without a mutant

"""


RATES = """
## How much the suite notices

Two samples of what is wrong, with the suite as the only judge. Each wrong engine runs in a process of its own.

**Small changes of the source.** An operator changes one place of the `memory` engine or of the kit that engines are made with
(`rmqstore.engine`, the contract, and the calls of a store above it). The sample is drawn by a seed, evenly over modules and operators. A
traced run on the sound engine tells which cases run through a line. Only these are run on a mutation, the shortest first, until one fails
or does not end. They run on `memory`, then on `lmdb`, at level extended; nothing is killed there. What no case runs through is counted
apart. A mutation that survives and that no user can tell from the sound engine is *equivalent*; it does not count. For the others cases
were written where that was possible (*closed*); they count as noticed. The figures are of the
first 64 changes that the command gave, of 11 that seed 2 gave of a later state of the source, and of the 40 of `--sample 40 --seed 3`
at commit `ab8c0dd`, in November 2026.

```
python -m rmqstore_conformance.proving.rates mutations --sample 150 --seed {seed} --judged mutations.jsonl
```

**Wrong engines.** Those above, and others that plug-in modules announce; the tables count the ones that were run. The cases of the broken
clause come first within each level. The run ends with the first of them that fails: then the engine is noticed *within* its clause. It goes
on when a case fails that does not name the clause.

```
python -m rmqstore_conformance.proving.rates engines --level {level} --judged engines.jsonl {plugins}
python -m rmqstore_conformance.proving.rates rates --mutations mutations.jsonl --engines engines.jsonl --into docs/mutants.json
```

What the suite does with a fault that no case was written for, the class `unseen` tells: engines on `memory`, `lmdb` and `rocksdb` whose
authors had read the contract and the kit, and no case; a script proves of each that it breaks its clause. They were judged before anybody
who writes cases had looked at them, by the cases that name the clause (`--within`), in November 2026. They are not in the repository: an
engine that is there is not unseen any more. The core cannot see what is optional, nor what a crash shows. The one that got away falls to
the random histories since they put timers whose tick is in the minute behind their time.
"""


def page() -> str:
    """Return the whole page, in the order of the clauses."""
    order = list(clauses())
    of_disks = {each.clause for each in mutants_of_disks.MUTANTS}
    absent = [(_link(name), WITHOUT_A_MUTANT[name]) for name in order if name in WITHOUT_A_MUTANT and name not in of_disks]
    planted = _mutants(sorted(MUTANTS, key=lambda mutant: order.index(mutant.clause)))
    return HEAD + planted + OF_DISKS + _mutants(mutants_of_disks.MUTANTS) + TAIL + table(("Clause", "Why"), absent) + _rates()


def _mutants(mutants: Iterable[WrongEngine]) -> str:
    rows = (
        (f"`{each.name}`", each.what, _link(each.clause), ", ".join(f"`{case}`" for case in each.caught_by) or "no case")
        for each in mutants
    )
    return table(("Mutant", "What is wrong", "Clause", "Caught by"), rows)


def _rates() -> str:
    rates = msgspec.json.decode(FIGURES.read_bytes(), type=Rates)
    parts = [
        RATES.format(seed=rates.seed, level=rates.level, plugins=" ".join(rates.plugins)),
        f"### Small changes, by operator\n\n{_summary(rates)}\n\n" + _tallies("Operator", rates.operators, _meaning),
        "### Small changes, by module\n\n" + _tallies("Module", rates.modules, lambda name: ""),
        "### Small changes that no case notices\n\n" + table(("Where", "Change", "", "Why"), map(_survivor, rates.survivors)),
        "### Wrong engines, by class\n\n" + _engines("Class", rates.kinds),
        "### Wrong engines, by chapter of the contract\n\n" + _engines("Clauses", rates.clauses),
    ]
    if rates.loose:
        header = ("Engine", "What is wrong", "Clause", "Other cases that fail")
        others = [", ".join(f"`{case}`" for case in each.outside) or "none" for each in rates.loose]
        rows = [(f"`{each.engine.removeprefix(PREFIX)}`", each.what, _link(each.clause)) for each in rates.loose]
        loose = table(header, [(*row, other) for row, other in zip(rows, others, strict=True)])
        parts.append(f"### Wrong engines that no case of their clause notices\n\n{loose}")
    return "\n".join(parts)


def _all(tally: Tally) -> int:
    return tally.caught + tally.survived + tally.not_reached


def _summary(rates: Rates) -> str:
    whole = Tally(
        name="",
        **{field: sum(getattr(each, field) for each in rates.modules) for field in Tally.__struct_fields__ if field != "name"},
    )
    return (
        f"Of {_all(whole)} changes of {len(rates.modules)} modules, cases run through {_all(whole) - whole.not_reached}. Of these "
        f"{whole.equivalent} are equivalent. Of the other {whole.counted}, {whole.caught} were noticed at once "
        f"({_percent(whole.caught / whole.counted)}; {whole.core} by the core), and {whole.caught + whole.closed} are noticed with the "
        f"cases written since: {_percent(whole.rate)}."
    )


def _meaning(operator: str) -> str:
    return f": {OPERATORS[operator].replace('``', '`')}"


def _tallies(name: str, tallies: Iterable[Tally], meaning: Callable[[str], str]) -> str:
    header = (name, "Noticed", "By the core", "Survived", "Of these equivalent", "Closed since", "Not run through", "Rate")
    rows = []
    for each in tallies:
        counts = (each.caught, each.core, each.survived, each.equivalent, each.closed, each.not_reached)
        rows.append((f"`{each.name}`{meaning(each.name)}", *map(str, counts), _percent(each.rate)))
    return table(header, rows)


def _survivor(each: Survivor) -> tuple[str, ...]:
    module, line, *_ = each.id.split(":")
    before, after = (code.replace("`", "'") for code in (each.before, each.after))
    return f"`{module}`:{line} {each.function}", f"`{before}` → `{after}`", each.triage, each.why


def _engines(name: str, tallies: Iterable[EngineTally]) -> str:
    header = (name, "Engines", "Noticed", "Within its clause", "By the core", "Within its clause by the core")
    shares = [(each, (each.caught, each.within, each.core, each.core_within)) for each in tallies]
    return table(header, [(each.name, str(each.engines), *(_of(count, each) for count in counts)) for each, counts in shares])


def _of(count: int, tally: EngineTally) -> str:
    return f"{count} ({_percent(count / tally.engines)})"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _link(clause: str) -> str:
    return f"[{clause}](contract.md#{clause.lower()})"


if __name__ == "__main__":
    publish("mutants.md", page())
