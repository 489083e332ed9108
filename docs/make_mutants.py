"""Write docs/mutants.md from the mutants of the conformance suite; with ``-`` as argument print it instead."""

from __future__ import annotations

import sys
from pathlib import Path

from rmqstore_conformance.clauses import clauses
from rmqstore_conformance.proving import mutants_of_disks
from rmqstore_conformance.proving.mutants import MUTANTS, WITHOUT_A_MUTANT
from rmqstore_conformance.proving.mutants_of_disks import DiskMutant
from rmqstore_conformance.proving.planting import PREFIX, Mutant

HEAD = f"""\
# Mutants

Made by `docs/make_mutants.py` from `conformance/src/rmqstore_conformance/proving/`; change the texts there.

A suite that passes everything proves nothing. So it is tried on engines that are wrong: each is `memory` with one fault planted into it,
and is named with the cases that must notice that. A test of `rmqstore-conformance` runs those cases: each fails on the mutant, and passes
on `memory`.

A mutant is an engine like others, called `{PREFIX}NAME`:

```
pytest --pyargs rmqstore_conformance --rmq-plugin rmqstore_conformance.proving.mutants --rmq-engine {PREFIX}fires_early
```

| Mutant | What is wrong | Clause | Caught by |
|---|---|---|---|
"""

OF_DISKS = f"""
## Engines that break their word in a crash

Made from `lmdb`, each right until the process is killed, the power goes or a call to the system fails; the
[crash tools](crash-tools.md) must notice. With `--rmq-plugin rmqstore_conformance.proving.mutants_of_disks` they are
engines called `{PREFIX}NAME`.

| Mutant | What is wrong | Clause | Caught by |
|---|---|---|---|
"""

TAIL = """
## Clauses without a mutant

| Clause | Why |
|---|---|
"""


def main() -> None:
    """Write the page, or print it."""
    if sys.argv[1:] == ["-"]:
        sys.stdout.write(page())
    else:
        (Path(__file__).parent / "mutants.md").write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the whole page, in the order of the clauses."""
    order = list(clauses())
    of_disks = {each.clause for each in mutants_of_disks.MUTANTS}
    rows = "".join(_row(each) for each in sorted(MUTANTS, key=lambda mutant: order.index(mutant.clause)))
    absent = "".join(
        f"| {_link(name)} | {WITHOUT_A_MUTANT[name]} |\n" for name in order if name in WITHOUT_A_MUTANT and name not in of_disks
    )
    return HEAD + rows + OF_DISKS + "".join(map(_row, mutants_of_disks.MUTANTS)) + TAIL + absent


def _row(mutant: Mutant | DiskMutant) -> str:
    caught_by = ", ".join(f"`{case}`" for case in mutant.caught_by)
    return f"| `{mutant.name}` | {mutant.what} | {_link(mutant.clause)} | {caught_by} |\n"


def _link(clause: str) -> str:
    return f"[{clause}](contract.md#{clause.lower()})"


if __name__ == "__main__":
    main()
