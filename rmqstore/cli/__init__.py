"""The ``rmqstore`` command.

Exit codes, as :mod:`rmqstore.cli.exits` lists them: 0 all went well; 1 an error; 2 the command line was not understood; 3 it ran, but some
item was not done (not cancelled, not acked, not found, a problem found); 130 ended by Ctrl-C.
"""

from rmqstore.cli.app import main

__all__ = ["main"]
