"""``python -m rmqstore``: the same as the ``rmqstore`` command."""

from rmqstore.cli import main

if __name__ == "__main__":
    main()
