"""``rmqstore serve``: a store for other processes, until the command is ended."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import resource
import signal
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import typer

from rmqstore.cli import show, stores
from rmqstore.cli.exits import EXIT_ERROR
from rmqstore.cli.options import EngineOption, SettingsOption, StoreArgument, certificates, examples, file_option, imported
from rmqstore.errors import IllegalArgumentError, RmqstoreError, StoreLockedError, StorePathError
from rmqstore.store import Store, open as open_store
from rmqstore.store.directory import SOCKET_NAME

if TYPE_CHECKING:
    import ssl

_T = TypeVar("_T")

_UNIX: Final = "unix"

_MAX_DESCRIPTORS: Final = 65_536
"""So many files a server lets itself open: twice what the most clients need that it takes by default, and the store's."""


ListenOption = Annotated[
    list[str] | None,
    typer.Option("--listen", "-l", metavar="unix|HOST:PORT", help="Where to listen, beside the socket in the store; may be given again."),
]


@examples(
    "rmqstore serve data --create",
    "rmqstore serve data --listen 127.0.0.1:7450 --metrics 127.0.0.1:9464",
    "rmqstore serve data --listen 0.0.0.0:7450 --token-file token --tls-cert server.pem --tls-key server.key",
)
def serve(
    context: typer.Context,
    store: StoreArgument,
    listen: ListenOption = None,
    token_file: Annotated[Path | None, file_option(help="Clients must give the token that this file holds.")] = None,
    tls_cert: Annotated[Path | None, file_option(help="Certificate, for TLS.")] = None,
    tls_key: Annotated[Path | None, file_option(help="Its private key.")] = None,
    tls_ca: Annotated[Path | None, file_option(help="Clients must show a certificate that these have signed.")] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Where /metrics is for Prometheus, and /health with it.")
    ] = None,
    health: Annotated[
        str | None, typer.Option("--health", metavar="HOST:PORT", help="Where /health and /health/live are, as with --metrics.")
    ] = None,
    log: Annotated[
        Literal["text", "json"],
        typer.Option("--log", metavar="text|json", help="What stderr is: text, or a JSON object a line.", show_default=False),
    ] = "text",
    create: Annotated[bool, typer.Option("--create", help="Make the store if there is none.")] = False,
    engine: EngineOption = None,
    settings: SettingsOption = None,
) -> None:
    """Serve a store to other processes.

    They reach it by `rmqstore.connect`, with the calls of a store that is open in the process; so do the commands of this command line.
    It always listens on the socket `rmqstore.sock` in the store, for processes of the same user. A port that other machines may reach
    needs a token or certificates; those of --metrics and --health, which are for HTTP, ask nobody who they are. Ctrl-C or SIGTERM ends it:
    calls under way are answered, pops that wait go on when it is back.
    """
    places = [_place(each) for each in listen or () if each != _UNIX]
    watched = [(option, *_place(each, option)) for option, each in (("--metrics", metrics), ("--health", health)) if each is not None]
    if metrics is not None:
        imported("opentelemetry.exporter.prometheus", "--metrics needs OpenTelemetry", "rmqstore[metrics]")
    tell = show.note if log == "text" else _telling_json()
    with nullcontext() if log == "text" else _errors_in_json(context.obj.is_debug):
        token = None if token_file is None else _token(token_file)
        tls = _context(tls_cert, tls_key, tls_ca)
        given = _given_sockets()
        open_to = [(f"--listen {host}:{port}", host) for host, port in places]
        open_to += [(f"the socket {name[0]}:{name[1]}", name[0]) for each in given if isinstance(name := each.getsockname(), tuple)]
        for what, host in open_to:
            if not _is_loopback(host) and token is None and tls_ca is None:
                raise IllegalArgumentError(
                    f"{what} lets other machines in, who are not asked who they are; give --token-file, or --tls-ca with "
                    "--tls-cert and --tls-key"
                )
        for each in given:
            if token is None and each.family == socket.AF_UNIX and _is_for_all(name := each.getsockname()):
                raise IllegalArgumentError(
                    f"the socket {name!r} of the service manager lets every user of this machine in; give it SocketMode=0600, or this "
                    "command --token-file"
                )
        if not create:
            stores.require(store)
        _raise_descriptors()
        try:
            # As the owner, and not through one that serves it already.
            owned = open_store(store, engine=engine, clock=stores.clock_factory(), **stores.parsed_settings(settings or []))
        except StoreLockedError as error:
            who = str(error).partition(";")[0]
            raise StoreLockedError(
                f"{who}; one process serves a store: end that one first; if it serves the store, rmqstore.connect reaches it"
            ) from None
        with owned as opened:
            import asyncio  # with the server, it is the slower half of a command's start

            asyncio.run(_serve(opened, store, places, given, token, tls, watched, tell))


async def _serve(
    opened: Store,
    path: Path,
    places: list[tuple[str, int]],
    given: list[socket.socket],
    token: str | None,
    tls: ssl.SSLContext | None,
    watched: list[tuple[str, str, int]],
    tell: Callable[[str], None],
) -> None:
    import asyncio

    from rmqstore.server.connection import Address
    from rmqstore.server.serving import Server

    server = Server(opened, token=token, is_server=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with AsyncExitStack() as watches:
        try:
            if all(each.getsockname() != str((path / SOCKET_NAME).absolute()) for each in given):
                await _had(server.entrance.listen_unix(opened.engine.directory.held / SOCKET_NAME), f"the socket {path / SOCKET_NAME}")
                tell(f"serving {path} at {path / SOCKET_NAME}")
            for host, port in places:
                (taken, *_) = await _had(server.entrance.listen(host, port, tls), f"--listen {host}:{port}")
                tell(f"serving {path} at {Address(None, host, taken, tls is not None)}")
            for each in given:
                await server.entrance.listen_at(each, tls)
                name = each.getsockname()
                where = Address(None, name[0], name[1], tls is not None) if isinstance(name, tuple) else Address(Path(os.fsdecode(name)))
                tell(f"serving {path} at {where}")
            for option, host, port in watched:
                from rmqstore.server.watching import Watch, exported

                watch = Watch(opened, watches.enter_context(exported(opened)) if option == "--metrics" else None)
                watches.push_async_callback(watch.stop)
                taken = await _had(watch.listen(host, port), f"{option} {host}:{port}")
                at = f"{f'[{host}]' if ':' in host else host}:{taken}"
                tell(f"{option[2:]} of {path} at http://{at}/{option[2:]}")
            _tell_manager("READY=1")
            await ended.wait()
            _tell_manager("STOPPING=1")
        finally:
            await server.stop()
    tell("ended; every call that was answered is kept.")


async def _had(listening: Awaitable[_T], what: str) -> _T:
    try:
        return await listening
    except OSError as error:
        raise StorePathError(f"{what} cannot be had: {error.strerror or error}") from error


class _JsonLines(logging.Formatter):
    """Writes a record as a JSON object on a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        return json.dumps(told | ({"error": self.formatException(record.exc_info)} if record.exc_info else {}))


def _telling_json() -> Callable[[str], None]:
    """Log to stderr as JSON from now on; returns what logs a line."""
    logger, handler = logging.getLogger("rmqstore"), logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return logger.info


@contextmanager
def _errors_in_json(is_debug: bool) -> Iterator[None]:
    """Log the error that ends the command like the other lines."""
    try:
        yield
    except (RmqstoreError, OSError) as error:
        logging.getLogger("rmqstore").error("%s", error, exc_info=is_debug)
        raise typer.Exit(EXIT_ERROR) from None


def _raise_descriptors() -> None:
    """Open as many files as the system lets this process, since half of them are for clients; a shell often gives it 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _given_sockets() -> list[socket.socket]:
    """Return the sockets on which the service manager that started this process listens for it (systemd's ``sd_listen_fds``)."""
    number = os.environ.get("LISTEN_FDS", "0")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not number.isdecimal():
        return []
    given = [socket.socket(fileno=3 + each) for each in range(int(number))]
    for each in given:
        if each.type != socket.SOCK_STREAM:
            raise IllegalArgumentError(f"the socket {each.getsockname()} of the service manager carries no streams; use ListenStream=")
    return given


def _is_for_all(name: str | bytes) -> bool:
    """Say whether any user may connect to a unix socket; one without a file has nobody to ask."""
    return isinstance(name, bytes) or not name or bool(Path(name).stat().st_mode & stat.S_IWOTH)


def _tell_manager(state: str) -> None:
    """Tell the service manager that started this process, if one did, how far it is (systemd's ``sd_notify``)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
            manager.sendall(state.encode())


def _place(text: str, option: str = "--listen") -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        what = "neither unix nor" if option == "--listen" else "not"
        raise typer.BadParameter(f"{text} is {what} HOST:PORT, as in 127.0.0.1:7450", param_hint=option)
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(file: Path) -> str:
    token = stores.token_in(file)
    if len(token) < 16:
        raise IllegalArgumentError(f"the token in {file} has {len(token)} characters, which can be guessed; give it 16 or more")
    return token


def _context(cert: Path | None, key: Path | None, ca: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        if key is not None or ca is not None:
            raise typer.BadParameter("TLS needs a certificate of this server: give --tls-cert", param_hint="--tls-cert")
        return None
    context = certificates("CLIENT_AUTH", cert, key, ca)
    if ca is not None:
        import ssl

        context.verify_mode = ssl.CERT_REQUIRED
    return context
