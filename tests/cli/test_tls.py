"""``rmqstore serve`` with certificates, and who gets in by them."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import trustme

import rmqstore
from rmqstore import AccessDeniedError, Message, StoreUnavailableError, aio
from rmqstore_conformance.stores import directory
from tests.cli.conftest import ENGINE
from tests.cli.test_processes import _PATIENCE_S, started
from tests.cli.test_servers import line, serving


class Certificates:
    """An authority, with a certificate of the server and one of a client, as files."""

    def __init__(self, root: Path) -> None:
        self._authority = trustme.CA()
        self.authority = root / "authority.pem"
        self.server = root / "server.pem"
        self._authority.cert_pem.write_to_path(self.authority)
        self._authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(self.server)
        shown = self._authority.issue_cert("client@example.org")
        self.client, self.client_key = root / "client.pem", root / "client.key"
        shown.cert_chain_pems[0].write_to_path(self.client)
        shown.private_key_pem.write_to_path(self.client_key)

    def trusting(self) -> ssl.SSLContext:
        """Return a client's context that knows the authority."""
        return ssl.create_default_context(cafile=self.authority)

    def known(self) -> ssl.SSLContext:
        """Return a client's context that also has a certificate by it."""
        context = self.trusting()
        context.load_cert_chain(self.client, self.client_key)
        return context


@pytest.fixture
def root() -> Iterator[Path]:
    with directory() as made:
        yield made


@pytest.fixture
def certificates(root: Path) -> Certificates:
    return Certificates(root)


def refused(where: str, tls: ssl.SSLContext | None, error: type[Exception] | tuple[type[Exception], ...], match: str) -> None:
    """Neither a thread nor a coroutine gets in, and both are told at once."""

    async def work() -> None:
        await aio.connect(where, tls=tls)

    with pytest.raises(error, match=match):
        rmqstore.connect(where, tls=tls)
    with pytest.raises(error, match=match):
        asyncio.run(work())


def test_messages_go_through_tls(root: Path, certificates: Certificates) -> None:
    with serving(root / "data", "--create", "--engine", ENGINE, "--listen", "127.0.0.1:0", "--tls-cert", certificates.server) as server:
        where = line(server, "rmqstores://").rpartition(" ")[2]
        with rmqstore.connect(where, tls=certificates.trusting()) as store:
            store.send_batch([Message("t", bytes([number]) * 100_000) for number in range(20)])
            (first, *_) = store.pop("t", "g", max_messages=1)

        async def work() -> None:
            async with aio.connect(where, tls=certificates.trusting()) as store:
                assert len(await store.pop("t", "g")) == 19
                await store.ack(first)

        asyncio.run(work())
        refused(where, None, AccessDeniedError, "do not agree on TLS")
        refused(where.replace("rmqstores", "rmqstore"), None, StoreUnavailableError, "write rmqstores:// if it wants TLS")


def test_a_client_shows_its_certificate(root: Path, certificates: Certificates) -> None:
    files = ("--tls-cert", certificates.server, "--tls-ca", certificates.authority)
    with serving(root / "data", "--create", "--engine", ENGINE, "--listen", "127.0.0.1:0", *files) as server:
        where = line(server, "rmqstores://").rpartition(" ")[2]
        with rmqstore.connect(where, tls=certificates.known(), patience=timedelta(0)) as store:
            assert store.topics.list() == []
        # of a server that says no without an alert, as asyncio's does, a client sees only that it closes
        refused(where, certificates.trusting(), (AccessDeniedError, StoreUnavailableError), "tls=…")


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_worker_shows_its_certificate_and_token(
    root: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(root)
    (root / "jobs.py").write_text(f"{kind} handle(message):\n    print(message.body, flush=True)\n")
    (root / "token").write_text("a token that is long enough\n")
    both = ("--tls-ca", certificates.authority, "--token-file", root / "token")
    with serving(
        root / "data", "--create", "--engine", ENGINE, "--listen", "127.0.0.1:0", "--tls-cert", certificates.server, *both
    ) as server:
        where = line(server, "rmqstores://").rpartition(" ")[2]
        shown = ("--tls-cert", certificates.client, "--tls-key", certificates.client_key)
        with (
            started("worker", where, "t", "g", "jobs:handle", *both, *shown) as worker,
            rmqstore.connect(root / "data", token="a token that is long enough") as store,
        ):
            assert worker.stdout is not None
            line(worker, "consumes t as g")
            store.send(Message("t", b"hello"))
            assert worker.stdout.readline() == b"b'hello'\n"
            worker.send_signal(signal.SIGTERM)
            assert "1 done" in line(worker, "done")
            assert worker.wait(_PATIENCE_S) == 0


def test_a_server_without_tls(root: Path, certificates: Certificates) -> None:
    with serving(root / "data", "--create", "--engine", ENGINE, "--listen", "127.0.0.1:0") as server:
        where = line(server, "rmqstore://").rpartition(" ")[2].replace("rmqstore:", "rmqstores:")
        refused(where, certificates.trusting(), AccessDeniedError, "do not agree on TLS")
