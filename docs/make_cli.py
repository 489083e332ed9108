"""Write docs/cli.md from the commands themselves; with ``-`` as argument print it instead."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import typer
from pages import publish, table

from rmqstore.cli.app import app
from rmqstore.cli.exits import MEANINGS

HEAD = """\
# The command line

Made by `docs/make_cli.py` from the commands in `rmqstore/cli/`; change the texts there.

`rmqstore` works on a store directory, which is the first argument of nearly every command. `rmqstore COMMAND -h` shows what stands here.

Commands that only read (`timers`, `topics list`, `groups list`, `lag`, `top`, `peek`, `leases`, `where`, `group`, `schedules list`,
`dlq list`, `config`, `doctor`, `verify`, `dump`) work beside a program that has the store open, if its engine can be
[opened for reading](engine.md#for-reading); `inspect` reads the bare files beside whoever owns them. All others own the store for a moment,
or go through the program that has it open, where that one [serves or shares it](server.md); where it does not, they say who has it.

- **Output.** Data goes to stdout; remarks, progress and errors go to stderr. In a pipe nothing is cut, wrapped or coloured. `NO_COLOR=1`
  turns colours off on a terminal, too.
- **Times** are shown in the local time zone with its offset, and relative to now. Where a command takes a time, it takes ISO 8601
  (`2026-12-01T08:00+01:00`; without an offset it is local time) or `1796108400000ms` since the epoch. Where it takes a
  duration, it takes `90s`, `5m`, `2h`, `1d`, `1h30m` or `250ms`. A bare number is neither.
- **`--json`** prints one JSON document; `pop` prints one object a line, since it may go on for ever. Each time is there twice: `NAME_ms`
  in ms since the epoch, and `NAME_iso` as ISO 8601 text. A message has the names of `rmqstore.OUT_SCHEMA`; its body is in `body` when it
  is text, else in `body_base64`. `send --from-file` takes such objects again.
- **Errors** are one paragraph. `rmqstore --debug COMMAND …` shows a traceback.
- **Ctrl-C** closes the store first. A second one does not wait.

## Exit codes

"""

_MESSAGE = (
    "`topic`, `message_id`, `tag`, `keys`, `properties`, `message_group`, `queue_id`, `body`, `body_base64`, `deliver_at_ms`, "
    "`deliver_at_iso`, `born_ms`, `born_iso`"
)
_STORED = f"{_MESSAGE}, `queue_offset`, `attempt`, `store_ms`, `store_iso`, `first_pop_ms`, `first_pop_iso`"

JSON: dict[str, dict[str, str]] = {
    "rmqstore send": {
        "topic, message_id, handle, deliver_at_ms, deliver_at_iso": "of one message",
        "rows, stored, stored_before, batches": "with `--from-file`: rows that are stored, by this run, and by earlier ones",
    },
    "rmqstore pop": {
        "a message": f"{_STORED}, `lease_end_ms`, `lease_end_iso`, `receipt`; one object a line",
    },
    "rmqstore ack": {"items": "a list of `receipt`, `outcome`", "all_done": "whether every one was acked"},
    "rmqstore cancel": {
        "items": "a list of `handle` (or `key`), `outcome`",
        "all_done": "whether every one was cancelled; false when nothing is pending under one of the keys",
    },
    "rmqstore timers": {
        "now_ms, now_iso, earliest_ms, earliest_iso, latest_ms, latest_iso": "the times of it all",
        "total, before, after": "timers in all, and those due outside of the buckets",
        "buckets": "a list of `from_ms`, `from_iso`, `to_ms`, `to_iso`, `count`",
        "timers": f"with `--list`, beside `now`: a list of {_MESSAGE}, `handle`",
    },
    "rmqstore topics list": {"topics": "a list of `name`, `queues`; a queue has `queue_id`, `min_offset`, `next_offset`"},
    "rmqstore topics create": {"name": "of the topic", "queues": "as in the list"},
    "rmqstore groups list": {"groups": "a list of `group`, `topic`, `is_ordered`, `active_ms`, `active_iso`"},
    "rmqstore lag": {
        "lags": "a list of `group`, `topic`, `ready`, `in_flight`, `retry`, `dead`, `expired`, `backing_off`, `queues`; "
        "a queue has `queue_id`, `next_offset`, `end_offset`, `in_flight`",
    },
    "rmqstore top": {
        "store, engines, now_ms, now_iso": "what was looked at, and when",
        "is_ready, problems, pending, overdue, lateness_ms": "as `store.health()` tells",
        "due": "an object of how many timers are due `now`, `in 1 min`, `in 1 h`, `in 1 d`, `later`, each without those before",
        "groups": "a list of `group`, `topic`, `ready`, `in_flight`, `retry`, `dead`, `expired`, `backing_off`",
        "disk_bytes": "what the directory takes; null for an address",
    },
    "rmqstore peek": {"messages": f"a list of {_STORED}", "next_offset": "where to read on; null at the end"},
    "rmqstore group": {
        "group": "its name",
        "max_retries": "null where the store's holds",
        "backoff_ms": "a list of waits, null where RocketMQ's table holds",
    },
    "rmqstore leases": {
        "now_ms, now_iso": "when that was",
        "leases": "a list of `group`, `topic`, `queue_id`, `queue_offset`, `message_id`, `attempt`, `is_backing_off`, `reason`, "
        "`pop_time_ms`, `pop_time_iso`, `first_pop_ms`, `first_pop_iso`, `expiry_ms`, `expiry_iso`, `receipt`",
    },
    "rmqstore dlq list": {
        "now_ms, now_iso": "when that was",
        "dead_letters": "a list of `group`, `reason`, `attempts`, `origin_topic`, `origin_message_id`, `died_ms`, `died_iso`, "
        "and `message` as `peek` prints it",
        "groups": "without a group: the number of dead letters by group",
    },
    "rmqstore dlq resend": {"done": "how many were given back", "not_found": "ids that no dead letter has"},
    "rmqstore dlq drop": {"done": "how many were dropped", "not_found": "ids that no dead letter has"},
    "rmqstore config": {
        "path, is_store": "the directory, and whether it is a store",
        "settings": "a list of `key`, `value`, `source`, `place`, `default`, `stored`, `takes`, `meaning`",
    },
    "rmqstore doctor": {
        "path, is_well": "the directory, and whether no problem was found",
        "checks": "a list of `check`, `level` (`ok`, `warning`, `problem`), `text`",
    },
    "rmqstore inspect": {
        "path, now_ms, now_iso, is_well": "the directory, the time that due times count from, and whether no damage was found",
        "inspections": "a list of `engine`, `path`, `title`, `sections`, `damage`; a section has `heading`, `note` and `rows` by column, "
        "a time among them as `ms` and `iso`; a damage has `file`, `offset`, `what`",
        "passed_over": "engines of the store of whose files nothing can be told",
    },
    "rmqstore verify": {"path, is_well": "the directory, and whether there is no difference", "differences": "a list of sentences"},
    "rmqstore dump": {
        "path, bytes, reused_files": "the dump, its size, and files of an earlier run that were used again",
        "tables": "rows by table",
    },
    "rmqstore load": {
        "path, previous": "the store, and where the one is that was there before; null when none was",
        "tables": "rows by table",
    },
    "rmqstore migrate": {"path, previous": "the store, and where the old one is", "tables": "rows by table"},
}
"""What each command prints with ``--json``, by the names of its top-level members."""


def page() -> str:
    """Return the whole page."""
    codes = table(("Code", "Meaning"), ((str(code), meaning) for code, meaning in MEANINGS.items()))
    listed = list(_commands(typer.main.get_command(app), "rmqstore"))
    rows = ((f"[`{name}`](#{name.replace(' ', '-')})", str(each.help).split("\n\n")[0].replace("\n", " ")) for name, each in listed)
    return f"{HEAD}{codes}\n## Commands\n\n{table(('Command', 'What it does'), rows)}{''.join(_section(*each) for each in listed)}"


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, by its full name."""
    for child, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {child}")
        else:
            yield f"{name} {child}", command


def _section(name: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    wanted = [_metavar(each) if each.required else f"[{_metavar(each)}]" for each in arguments]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *wanted])
    parts = [f"\n### {name}\n", f"```\n{usage}\n```\n", *(f"{_paragraph(text)}\n" for text in str(command.help).split("\n\n"))]
    if arguments:
        parts.append(table(("Argument", ""), ((f"`{_metavar(each)}`", each.help) for each in arguments)))
    if options:
        parts.append(table(("Option", "Default", ""), map(_option, options)))
    if name in JSON:
        members = (f"- `{member}`: {meaning}\n" for member, meaning in JSON[name].items())
        parts.append("With `--json`:\n\n" + "".join(members))
    if command.epilog:
        lines = [line.strip() for line in command.epilog.splitlines()[2:]]
        parts.append("```sh\n" + "\n".join(lines) + "\n```\n")
    return "\n".join(parts)


def _paragraph(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 140, break_long_words=False, break_on_hyphens=False)


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option(parameter: Any) -> tuple[str, str, str]:
    names, default = ", ".join([*parameter.opts, *parameter.secondary_opts]), parameter.default
    name = names if parameter.is_flag else f"{names} {_metavar(parameter)}"
    if parameter.is_flag:
        shown = "" if not parameter.secondary_opts else f"`{(parameter.opts if default else parameter.secondary_opts)[0]}`"
    else:
        shown = "" if default in (None, "", [], ()) else f"`{getattr(default, 'value', default)}`"
    return f"`{name}`", shown, f"{'required. ' if parameter.required else ''}{parameter.help or ''}"


if __name__ == "__main__":
    publish("cli.md", page())
