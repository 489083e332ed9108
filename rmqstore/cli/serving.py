"""``rmqstore serve``: a store for other processes, until the command is ended."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore.cli import show, stores
from rmqstore.cli.options import StoreArgument, complete_engine, examples
from rmqstore.errors import IllegalArgumentError, StorePathError
from rmqstore.store import Store, open as open_store
from rmqstore.store.directory import SOCKET_NAME

if TYPE_CHECKING:
    import ssl

_UNIX: Final = "unix"

ListenOption = Annotated[
    list[str] | None,
    typer.Option("--listen", "-l", metavar="unix|HOST:PORT", help="Where to listen, beside the socket in the store; may be given again."),
]


@examples(
    "rmqstore serve data --create",
    "rmqstore serve data --listen 127.0.0.1:7450",
    "rmqstore serve data --listen 0.0.0.0:7450 --token-file token --tls-cert server.pem --tls-key server.key",
)
def serve(
    store: StoreArgument,
    listen: ListenOption = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Clients must give the token that this file holds.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Certificate, for TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Its private key.")] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Clients must show a certificate that these have signed."),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the store if there is none.")] = False,
    engine: Annotated[
        str | None, typer.Option("--engine", "-e", metavar="NAME", help="Storage engine of a new store.", autocompletion=complete_engine)
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be given again.")] = None,
) -> None:
    """Serve a store to other processes.

    They reach it by `rmqstore.connect`, with the calls of a store that is open in the process; so do the commands of this command line.
    It always listens on the socket `rmqstore.sock` in the store, for processes of the same user. A port that other machines may reach
    needs a token or certificates. Ctrl-C or SIGTERM ends it: calls under way are answered, pops that wait go on when it is back.
    """
    places = [_place(each) for each in listen or () if each != _UNIX]
    token = None if token_file is None else _token(token_file)
    tls = _context(tls_cert, tls_key, tls_ca)
    for host, port in places:
        if not _is_loopback(host) and token is None and tls_ca is None:
            raise IllegalArgumentError(
                f"--listen {host}:{port} lets other machines in, who are not asked who they are; give --token-file, or --tls-ca with "
                "--tls-cert and --tls-key"
            )
    if not create:
        stores.require(store)
    # As the owner, and not through one that serves it already.
    with open_store(store, engine=engine, clock=stores.clock_factory(), **stores.parsed_settings(settings or [])) as opened:
        import asyncio  # with the server, it is the slower half of a command's start

        asyncio.run(_serve(opened, store, places, token, tls))


async def _serve(opened: Store, path: Path, places: list[tuple[str, int]], token: str | None, tls: ssl.SSLContext | None) -> None:
    import asyncio

    from rmqstore.server.connection import Address
    from rmqstore.server.serving import Server

    server = Server(opened, token=token, is_server=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    try:
        await server.listen_unix(path / SOCKET_NAME)
        show.note(f"serving {path} at {path / SOCKET_NAME}")
        for host, port in places:
            try:
                (taken, *_) = await server.listen(host, port, tls)
            except OSError as error:
                raise StorePathError(f"--listen {host}:{port} cannot be had: {error.strerror or error}") from error
            show.note(f"serving {path} at {Address(None, host, taken, tls is not None)}")
        _tell_manager("READY=1")
        await ended.wait()
        _tell_manager("STOPPING=1")
    finally:
        await server.stop()
    show.note("ended; every call that was answered is kept.")


def _tell_manager(state: str) -> None:
    """Tell the service manager that started this process, if one did, how far it is (systemd's ``sd_notify``)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
            manager.sendall(state.encode())


def _place(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise typer.BadParameter(f"{text} is neither unix nor HOST:PORT, as in 127.0.0.1:7450", param_hint="--listen")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(file: Path) -> str:
    token = file.read_text(encoding="utf-8").strip()
    if len(token) < 16:
        raise IllegalArgumentError(f"the token in {file} has {len(token)} characters, which can be guessed; give it 16 or more")
    return token


def _context(cert: Path | None, key: Path | None, ca: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        if key is not None or ca is not None:
            raise typer.BadParameter("TLS needs a certificate of this server: give --tls-cert", param_hint="--tls-cert")
        return None
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    if ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        raise IllegalArgumentError(f"--tls-cert {cert} cannot be used: {error}") from error
    return context
