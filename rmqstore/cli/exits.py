"""The exit codes of the ``rmqstore`` command, in one place."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_DONE: Final = 3
EXIT_INTERRUPTED: Final = 130

MEANINGS: Final = {
    EXIT_OK: "all went well; also the end of `pop --follow` by Ctrl-C",
    EXIT_ERROR: "an error: one paragraph on stderr says what and what to do; also when the reader of the output went away (`| head`)",
    EXIT_USAGE: "the command line was not understood",
    EXIT_NOT_DONE: "it ran, but some item was not done (not cancelled, acked or found), or `verify`, `doctor` or `inspect` found a problem",
    EXIT_INTERRUPTED: "ended by Ctrl-C, after a clean close",
}
"""What each exit code means; docs/cli.md shows this table."""
