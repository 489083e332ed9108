"""Write docs/configuration.md from the settings table in rmqstore/settings.py; with ``-`` as argument print it instead."""

from __future__ import annotations

from pages import publish, table

from rmqstore.contract import Setting
from rmqstore.settings import CORE_SETTINGS, allowed

HEAD = """\
# Configuration

Made by `docs/make_configuration.py` from `rmqstore/settings.py`; change the table there.

A setting is read from these sources; a later one wins:

1. its default;
2. `rmqstore.toml` in the store directory;
3. the TOML file that the environment variable `RMQSTORE_CONFIG` names;
4. environment variables `RMQSTORE_*` (an empty one counts as not set);
5. keyword arguments of `rmqstore.open` (`None` counts as not given).

A dot in a key is a table in TOML and two underscores elsewhere. Keyword arguments take durations (`…_ms`) as whole milliseconds or as
`timedelta`:

| | `flush` | `clock.max_step_ms` |
|---|---|---|
| TOML | `flush = "async"` | `[clock]` `max_step_ms = 60000` |
| environment | `RMQSTORE_FLUSH=async` | `RMQSTORE_CLOCK__MAX_STEP_MS=60000` |
| keyword | `flush="async"` | `clock__max_step_ms=60_000` |

What is unknown, of the wrong type or out of range is refused with a `ConfigError` that says where it stands, what is allowed, and which
known name is nearest. That holds for the tables of engines that are not in use, too.

`engine` names the engine of both timers and pops; `timer_engine` and `pop_engine`, wherever given, name one of the two. *Stored* settings
are kept with the store when it is made: later they may be left out, and are then read from the store, but they cannot be changed.

## Settings of the framework

"""

TAIL = """
## Settings of engines

Each engine has settings of its own under its name, as a table of that name in TOML; `rmqstore engines --json` lists those of every
engine that is installed.

## Other variables

| Variable | Meaning |
|---|---|
| `RMQSTORE_CONFIG` | path of a further TOML file |
| `RMQSTORE_STRICT_PLUGINS` | `1`: a broken plug-in is an error at once, instead of a warning |
"""


def _row(setting: Setting) -> tuple[str, ...]:
    takes = allowed(setting).replace("'", "`")
    default = str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)
    return f"`{setting.key}`", takes, f"`{default}`" if default else "empty", "yes" if setting.baked else "", setting.doc


if __name__ == "__main__":
    publish("configuration.md", HEAD + table(("Key", "Takes", "Default", "Stored", "Meaning"), map(_row, CORE_SETTINGS)) + TAIL)
