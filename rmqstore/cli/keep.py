"""``rmqstore snapshot``, ``restore`` and ``verify``: copies of a whole store, and whether one is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_NOT_DONE
from rmqstore.cli.options import JsonOption, StoreArgument, examples
from rmqstore.store.snapshots import restore as restore_snapshot

SNAPSHOT_EXAMPLES: Final = examples("rmqstore snapshot data backup-2026-12-01")
RESTORE_EXAMPLES: Final = examples("rmqstore restore backup-2026-12-01 data")
VERIFY_EXAMPLES: Final = examples("rmqstore verify data", "rmqstore verify data --json")


def snapshot(
    store: StoreArgument,
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="Directory of the copy, which must not exist yet.", show_default=False)],
) -> None:
    """Write a consistent copy of a store.

    The copy opens like any store. It needs the store for itself; a program that has the store open takes snapshots by `Store.snapshot`.
    """
    with stores.owning(store) as opened:
        path = opened.snapshot(dest)
    show.line(str(path))
    show.note(f"`rmqstore restore {path} DEST` makes a store of it.")


def restore(
    snapshot: Annotated[Path, typer.Argument(metavar="SNAPSHOT", help="Directory of the snapshot; it stays as it is.", show_default=False)],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="Directory of the store, which must not exist yet.", show_default=False)],
) -> None:
    """Make a store from a snapshot.

    It is the store that the snapshot was taken from, as of then: its receipts and handles count. Do not use both at the same time: each
    would deliver the same messages. An interrupted restore leaves no store, and is simply run again.
    """
    path = restore_snapshot(snapshot, dest)
    show.line(str(path))
    show.note(f"`rmqstore doctor {path} --deep` looks it over.")


def verify(store: StoreArgument, as_json: JsonOption = False) -> None:
    """Read every record and recount every counter.

    Prints one line a difference; none when all is well. `rmqstore doctor` looks at what is around the store, too.
    """
    with stores.reading(store) as opened:
        differences = opened.verify()
    if as_json:
        show.document({"path": str(store), "is_well": not differences, "differences": differences})
    else:
        for difference in differences:
            show.line(show.plain(difference))
        show.note(f"{show.count(len(differences), 'difference')}." if differences else "Every record can be read, every counter is right.")
    if differences:
        raise typer.Exit(EXIT_NOT_DONE)
