"""What a figure depends on besides the code: versions, machine, disk; how figures get into a page; and commands that print a table."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_DISTRIBUTIONS = ("rmqstore", "pyarrow", "numpy", "rocksdict", "lmdb", "pyspark")
_SYNCS = 100


def described(directory: Path) -> dict[str, Any]:
    """Return versions, machine and disk; ``directory`` is where the data will lie."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "versions": {name: version for name in _DISTRIBUTIONS if (version := _version(name))},
        "lmdb_library": _lmdb_library(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "directory": str(directory),
        "file_system": _file_system(directory),
        "sync_p50_ms": round(sync_p50_ms(directory), 3),
        "load_average": round(os.getloadavg()[0], 2),
    }


def sentence(machine: dict[str, Any]) -> str:
    """Return :func:`described` as lines for a page."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    library = f" (LMDB {machine['lmdb_library']})" if machine["lmdb_library"] else ""
    return (
        f"{machine['date']}; Python {machine['python']}, {versions}{library}; Linux {machine['kernel']} on {machine['machine']}, "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['file_system']}; a 4 KiB write with fdatasync took "
        f"{machine['sync_p50_ms']} ms (p50), the load average at the start was {machine['load_average']}."
    )


def sync_p50_ms(directory: Path) -> float:
    """Return the median time of a 4 KiB write at the end of a file with its fdatasync, ms."""
    times_s = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(_SYNCS):
            start_s = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
            times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s) * 1000


def default_directory() -> Path:
    """Return a directory on a disk: /var/tmp, since /tmp is memory on many machines."""
    place = Path("/var/tmp")
    return place if os.access(place, os.W_OK) else Path(tempfile.gettempdir())


def measure_engines(about: str | None, heading: str, measure: Callable[[str, Path, int], None], **timers: int) -> None:
    """Be a command that prints a table with the rows of each engine that is named, which ``measure`` prints, all on one disk.

    Args:
        measure: is given the engine, a directory, and a number of timers.
        timers: the option for this number, and its default.
    """
    ((name, number),) = timers.items()
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--engines", nargs="+", default=["wheel", "rocksdb", "lmdb"])
    parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--stores", type=Path, default=default_directory(), help="the disk to measure")
    given = vars(parser.parse_args())
    with tempfile.TemporaryDirectory(dir=given["stores"]) as root:
        print(heading)
        for engine in given["engines"]:
            measure(engine, Path(root), given[name])
        print(f"\n{sentence(described(Path(root)))}")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _lmdb_library() -> str:
    with contextlib.suppress(ImportError):
        import lmdb

        return ".".join(map(str, lmdb.version()))
    return ""


def _file_system(directory: Path) -> str:
    """Return the type of the file system that holds ``directory``."""
    done = subprocess.run(["df", "--output=fstype", str(directory)], capture_output=True, text=True, check=False)
    return (done.stdout.split() or ["unknown file system"])[-1]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, columns aligned so that it reads as plain text too; all columns but the first are right-aligned."""
    widths = [max(3, *(len(row[at]) for row in (header, *rows))) for at in range(len(header))]
    lines = [header, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])], *rows]
    aligned = [
        [cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(zip(line, widths, strict=True))]
        for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in aligned)


def replace_part(page: Path, name: str, text: str) -> None:
    """Put ``text`` between the markers ``<!-- name: begin -->`` and ``<!-- name: end -->`` of a Markdown page.

    Raises:
        SystemExit: the page has no such markers.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    part = f"{begin}\n\n{text.strip()}\n\n{end}"
    content, found = re.subn(f"(?s){begin}.*?{end}", lambda _: part, page.read_text(encoding="utf-8"))
    if not found:
        raise SystemExit(f"{page} needs the lines {begin} and {end}, in this order")
    page.write_text(content, encoding="utf-8")
