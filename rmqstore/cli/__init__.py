"""The ``rmqstore`` command. It ends with 0 when all went well, 1 on an error, and 2 when the command line was not understood."""

from rmqstore.cli.app import main

__all__ = ["main"]
