"""``python -m rmqstore_benchmarks.grid.child '<JSON of a ChildJob>'``: owns a store to be killed, or to drain it with little memory."""

from __future__ import annotations

import json
import os
import sys


def _enter(group: str) -> None:
    """Join the control group before anything large is imported, so that all memory counts."""
    if group:
        with open(os.path.join(group, "cgroup.procs"), "w") as file:  # noqa: PTH118 - pathlib would be imported outside of the group
            file.write(str(os.getpid()))


def main(text: str) -> None:
    """Do the job."""
    _enter(json.loads(text)["group"])
    import msgspec

    from rmqstore_benchmarks.grid.aside import ChildJob
    from rmqstore_benchmarks.grid.chores import die, drain

    job = msgspec.json.decode(text, type=ChildJob)
    {"die": die, "drain": drain}[job.what](job)


if __name__ == "__main__":
    main(sys.argv[1])
