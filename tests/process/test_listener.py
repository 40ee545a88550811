"""D7: no client can hold a connection open, fill memory, or frame a request two ways."""

from __future__ import annotations

import asyncio
import resource
import shutil
import ssl
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fleet.api.asgi import AgentApp, Answer, host_allowed
from fleet.api.serve import Listener, bind_tcp, load_chain, tls_context
from fleet.config import HttpLimits
from fleet.errors import InputError

LIMITS = HttpLimits(header_s=0.3, body_s=0.5, write_s=0.5, idle_s=0.4, close_s=0.5)
HEAD = b"POST /v1/agent/report HTTP/1.1\r\nHost: 127.0.0.1\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Door:
    """Answers every agent request and counts it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.big = False
        self.block: asyncio.Event | None = None

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, peer: str = ""
    ) -> Answer:
        """Take one."""
        self.bodies.append(body)
        if self.block is not None:
            await self.block.wait()
        return 200, {}, b"x" * (32 << 20) if self.big else b"ok"


class Well:
    """All is well."""

    async def ready(self) -> str:
        """Nothing to say."""
        return ""


class Bench:
    """One listener and raw connections to it."""

    def __init__(self, per_address: int, tls: ssl.SSLContext | None) -> None:
        self.door, self.refused = Door(), Counter[str]()
        sock = bind_tcp("127.0.0.1", 0, "agents")
        self.port = sock.getsockname()[1]
        count = lambda why: self.refused.update([why])  # noqa: E731
        app = AgentApp(self.door, Well(), names={"fleet.test"}, body_bytes=lambda: 262_144,
                       refused=count)  # fmt: skip
        self.listener = Listener("agents", app, sock, LIMITS, refused=count,
                                 per_address=per_address, tls=tls)  # fmt: skip

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, data: bytes, timeout_s: float = 3.0) -> bytes:
        """Send bytes, and everything that comes until the server closes."""
        reader, writer = await self.open()
        try:
            writer.write(data)
            async with asyncio.timeout(timeout_s):
                return await reader.read()
        except ConnectionResetError:
            return b"reset"
        finally:
            writer.close()

    async def honest(self) -> bool:
        """An ordinary client is served."""
        reader, writer = await self.open()
        writer.write(GET)
        line = await asyncio.wait_for(reader.readline(), 2)
        writer.close()
        return b" 200 " in line


def bench(
    work: Callable[[Bench], Awaitable[Any]], per_address: int = 16,
    tls: ssl.SSLContext | None = None,
) -> Bench:  # fmt: skip
    """Run ``work`` beside a listener."""

    async def main() -> Bench:
        made = Bench(per_address, tls)
        await made.listener.start()
        try:
            await work(made)
        finally:
            await made.listener.aclose()
        return made

    return asyncio.run(main())


def status(answer: bytes) -> int:
    """The status code of an answer."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


SLOW = {
    "silent connection": ([], 408),
    "one header line at a time": ([HEAD, *[b"X-A: 1\r\n"] * 50], 408),
    "half a header": ([HEAD + b"X-A: ", *[b"a"] * 50], 408),
    "empty lines": ([b"\r\n"] * 50, 408),
    "one body byte at a time": ([HEAD + b"Content-Length: 100\r\n\r\n", *[b"a"] * 50], 0),
    "one chunk byte at a time": (
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1\r\na\r\n"] * 50], 0,
    ),
    "idle after an answer": ([GET], 200),
    "idle, then empty lines": ([GET, *[b"\r\n"] * 50], 200),
}  # fmt: skip


@pytest.mark.parametrize("case", SLOW)
def test_a_slow_client_is_closed_at_the_deadline(case: str) -> None:
    """xinference#5213, uvicorn#157: uvicorn itself has no timer for any of these."""
    pieces, want = SLOW[case]

    async def work(b: Bench) -> None:
        reader, writer = await b.open()
        loop = asyncio.get_running_loop()
        start = loop.time()
        answer = b""

        async def drip() -> None:
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.1)

        task = asyncio.ensure_future(drip())
        try:
            async with asyncio.timeout(3):
                answer = await reader.read()
        except ConnectionResetError:
            pass
        task.cancel()
        writer.close()
        assert status(answer) == want
        assert loop.time() - start < 1.5
        assert await b.honest()
        assert b.door.bodies == []

    bench(work)


RAW = {
    "CL and TE": (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "TE and CL": (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
    "two CL": (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\na", 400),
    "CL +5": (HEAD + b"Content-Length: +5\r\n\r\nabcde", 400),
    "CL -1": (HEAD + b"Content-Length: -1\r\n\r\n", 400),
    "xchunked": (HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "TE with a space": (HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "bare LF": (b"GET /healthz HTTP/1.1\nHost: 127.0.0.1\n\n", 400),
    "folded header": (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nA: b\r\n c\r\n\r\n", 400),
    "NUL in a header": (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nA: \x00\r\n\r\n", 400),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    "no Host": (b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", 421),
    "two Hosts": (
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.test\r\n\r\n", 421,
    ),
    "wrong Host": (b"GET /healthz HTTP/1.1\r\nHost: evil.test\r\n\r\n", 421),
    "announced 200 MB": (HEAD + b"Content-Length: 209715200\r\n\r\n", 413),
    "5 MiB in one header": (HEAD + b"X-A: " + b"a" * (5 << 20) + b"\r\n\r\n", 431),
    "40 KiB in the path": (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    "50,000 headers": (HEAD + b"A: b\r\n" * 50_000 + b"\r\n", 431),
    "65 headers": (HEAD + b"A: b\r\n" * 65 + b"Content-Length: 0\r\n\r\n", 431),
}  # fmt: skip


@pytest.mark.parametrize("case", RAW)
def test_a_bad_request_is_refused_and_closed(case: str) -> None:
    """vLLM GHSA-rxc4-3w6r-4v47, request smuggling, DNS rebinding."""
    data, want = RAW[case]

    async def work(b: Bench) -> None:
        answer = await b.ask(data)
        assert status(answer) == want or (answer == b"reset" and len(data) > 100_000), answer[:80]
        assert b.door.bodies == []
        assert await b.honest()

    made = bench(work)
    assert sum(made.refused.values()) == 1


def test_a_body_without_a_length_is_cut_at_the_limit() -> None:
    async def work(b: Bench) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _, writer = await b.open()
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        try:
            for _ in range(3200):  # 200 MB
                writer.write(b"10000\r\n" + b"a" * 65536 + b"\r\n")
                await writer.drain()
                sent += 65536
        except ConnectionError:
            pass
        writer.close()
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert sent < 20_000_000
        assert grown_kib < 20_000
        assert b.door.bodies == []
        assert b.refused["too_long"] == 1
        assert await b.honest()

    bench(work)


def test_good_requests_share_a_connection() -> None:
    async def work(b: Bench) -> None:
        reader, writer = await b.open()
        body = b"a" * 200_000
        for _ in range(3):
            writer.write(HEAD + b"Content-Length: 200000\r\n\r\n" + body)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 2)
            assert b" 200 " in head and await reader.readexactly(2) == b"ok"
            await asyncio.sleep(0.2)
        writer.write(GET + GET)  # pipelined
        text = b""
        while text.count(b'{"ok":true}') < 2:
            text += await asyncio.wait_for(reader.read(4096), 2)
        writer.close()
        assert [len(x) for x in b.door.bodies] == [200_000] * 3

    assert not bench(work).refused


def test_a_client_that_does_not_read_is_cut_off() -> None:
    async def work(b: Bench) -> None:
        b.door.big = True
        _, writer = await b.open()
        writer.write(HEAD + b"Content-Length: 0\r\n\r\n")
        await asyncio.sleep(1.2)
        assert b.refused["slow_reader"] == 1
        writer.close()

    bench(work)


def test_one_address_has_at_most_so_many_connections() -> None:
    async def work(b: Bench) -> None:
        held = [await b.open() for _ in range(4)]
        assert status(await b.ask(GET)) == 503
        for _, writer in held:
            writer.close()
        await asyncio.sleep(0.05)
        assert await b.honest()

    assert bench(work, per_address=4).refused["too_many_connections"] == 1


def test_a_stop_waits_for_requests_only_so_long() -> None:
    async def work(b: Bench) -> None:
        b.door.block = asyncio.Event()
        reader, writer = await b.open()
        writer.write(HEAD + b"Content-Length: 0\r\n\r\n")
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        start = loop.time()
        await b.listener.aclose()
        assert loop.time() - start < 1.2
        assert await asyncio.wait_for(reader.read(), 1) == b""
        with pytest.raises(OSError):
            await b.open()
        writer.close()

    bench(work)


@pytest.mark.parametrize(
    ("host", "ok"),
    [
        ("fleet.test", True), ("FLEET.test:7070", True), ("localhost:1", True),
        ("127.0.0.1:7070", True), ("[::1]:7070", True), ("[::1]", True), ("10.0.0.7", True),
        ("evil.test", False), ("127.0.0.1.evil.test", False), ("", False), ("fleet.test.", False),
    ],
)  # fmt: skip
def test_hosts(host: str, ok: bool) -> None:
    assert host_allowed(host, {"fleet.test"}) is ok


def test_a_long_poll_ends_with_the_stop() -> None:
    """A watching fleetctl must not make every restart wait."""
    began = asyncio.Event()

    async def poll(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        await asyncio.sleep(60)

    async def main() -> None:
        sock = bind_tcp("127.0.0.1", 0, "test")
        listener = Listener("test", poll, sock, HttpLimits(), refused=lambda _: None)
        await listener.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(GET)
        await began.wait()
        loop = asyncio.get_running_loop()
        start = loop.time()
        await listener.aclose()
        assert loop.time() - start < 1.0
        assert await asyncio.wait_for(reader.read(), 1) == b""
        writer.close()

    asyncio.run(main())


def certificate(folder: Path, name: str) -> tuple[str, str]:
    """A self-signed certificate and its key as files."""
    cert, key = str(folder / f"{name}.crt"), str(folder / f"{name}.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_tls_and_a_renewed_certificate(folder: Path) -> None:
    one, two = certificate(folder, "one"), certificate(folder, "two")
    context = tls_context(*one)
    assert context is not None
    with pytest.raises(InputError, match="tls_cert"):
        tls_context(one[0], two[1])
    with pytest.raises(InputError, match="together"):
        tls_context(one[0], "")

    async def work(b: Bench) -> None:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

        async def name() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", b.port, ssl=trusting)
            writer.write(GET)
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 2)
            der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return der

        first = await name()
        load_chain(context, *two)
        assert await name() != first
        _, silent = await b.open()  # no handshake at all
        await asyncio.sleep(0.6)
        assert await name()
        silent.close()

    bench(work, tls=context)
