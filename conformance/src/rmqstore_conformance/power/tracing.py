"""Running a program under strace, and reading what strace says of it."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

WRITES: Final = ("write", "pwrite64", "writev", "pwritev", "pwritev2")
LENGTHS: Final = ("ftruncate", "truncate", "fallocate")
SYNCS: Final = ("fsync", "fdatasync", "msync", "sync_file_range", "syncfs", "sync")
OPENS: Final = ("open", "openat", "creat")
NAMES: Final = ("rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "link", "linkat")
COPIES: Final = ("copy_file_range", "sendfile")
DESCRIPTORS: Final = ("close", "dup", "dup2", "dup3", "fcntl", "lseek", "read")
MARKS: Final = ("access", "faccessat", "faccessat2")

RECORDED: Final = (*WRITES, *LENGTHS, *SYNCS, *OPENS, *NAMES, *COPIES, *DESCRIPTORS, *MARKS, "mmap")
"""All that changes files, or tells which file another call is about."""

_LONGEST: Final = 64 << 20
_SHORT: Final = 256
"""So much of each string is shown where no data are asked for."""

_WHOLE: Final = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\w+|\?)(.*)$", re.DOTALL)
_BEGUN: Final = re.compile(r"^(\d+) +(\w+)\((.*?),? ?<unfinished \.\.\.>$", re.DOTALL)
_ENDED: Final = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)\) += (-?\w+|\?)(.*)$", re.DOTALL)


@functools.cache
def unusable() -> str | None:
    """Say why strace cannot be used here; None when it can."""
    if shutil.which("strace") is None:
        return "install strace"
    tried = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=write", "true"], capture_output=True, text=True, check=False
    )
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()[:120]}"


class SystemCall(NamedTuple):
    """A system call as strace shows it.

    Attributes:
        thread: the thread that made it.
        arguments: as text; strings are hexadecimal.
        result: what it returned, negative when it failed.
        injected: whether strace answered in place of the system.
        begun: how many calls had ended when this one began.
        ended: how many had ended before this one did.
    """

    thread: int
    name: str
    arguments: str
    result: int
    injected: bool
    begun: int
    ended: int


def traced(command: Sequence[str], names: Iterable[str], output: Path, injections: Sequence[str], *, paths: bool = False) -> list[str]:
    """Return the command that runs another one under strace.

    Args:
        command: to be run.
        names: of the system calls that are written down.
        output: the file that they are written to.
        injections: what strace answers in place of the system, as its option ``inject`` takes it.
        paths: descriptors stand with the paths that they are open on, and what is written is left out.
    """
    options = ["-f", "-q", "-xx", "-s", str(_SHORT if paths else _LONGEST), "-e", "signal=none", "-e", "raw=read", "-o", str(output)]
    if not any(":signal=" in each for each in injections):
        # Stops at these calls alone, which is faster; strace 6.1 then forgets the signals that it is to inject.
        options.append("--seccomp-bpf")
    filters = ["-e", f"trace={','.join(names)}", *(part for each in injections for part in ("-e", f"inject={each}"))]
    return ["strace", *options, *(["-y"] if paths else []), *filters, "--", *command]


def read_trace(path: Path) -> Iterator[SystemCall]:
    """Yield the calls of a trace in the order in which they ended, but for the syncs, which stand where they began.

    What another thread wrote while a sync ran need not be in it; so it is taken to come behind it.
    """
    begun: dict[tuple[int, str], tuple[str, int]] = {}
    held: list[SystemCall] = []
    ended = 0
    with path.open(encoding="ascii", errors="replace") as file:
        for line in file:
            text = line.rstrip("\n")
            if match := _WHOLE.match(text):
                thread, name, arguments, result, rest = match.groups()
                at = ended
            elif match := _BEGUN.match(text):
                begun[int(match[1]), match[2]] = (match[3], ended)
                continue
            elif match := _ENDED.match(text):
                thread, name, more, result, rest = match.groups()
                first, at = begun.pop((int(thread), name), ("", ended))
                arguments = ", ".join(part for part in (first, more.lstrip(", ")) if part)
            else:
                continue
            value = -1 if result == "?" else int(result, 0)
            held.append(SystemCall(int(thread), name, arguments, value, "(INJECTED)" in rest, at, ended))
            ended += 1
            if not any(name in SYNCS for _, name in begun):
                yield from sorted(held, key=_place)
                held.clear()
    yield from sorted(held, key=_place)


def _place(call: SystemCall) -> float:
    return call.begun - 0.5 if call.name in SYNCS else call.ended


_STRING: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def strings_of(arguments: str) -> list[bytes]:
    """Return the strings among the arguments of a call."""
    return [bytes.fromhex(text.replace("\\x", "")) for text in _STRING.findall(arguments)]
