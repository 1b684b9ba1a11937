"""A client on raw sockets: it sends bytes as told, and sees every byte of an answer, its time, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Self

from tests.support.http import BodyReader, Fields, parse_fields, values

READ1_BODY = b'{"model":"m","prompt":"hi","max_tokens":1,"logprobs":1}'
GEN_BODY = b'{"model":"m","prompt":"hi","max_tokens":50,"logprobs":1}'
STREAM_BODY = GEN_BODY[:-1] + b',"stream":true}'


def request(
    method: str,
    target: str | bytes,
    body: bytes | None = None,
    *fields: str | bytes,
    host: str = "test",
    version: str = "1.1",
    content_type: str | None = "application/json",
) -> bytes:
    """A request's bytes; `fields` are whole header lines."""
    raw = target if isinstance(target, bytes) else target.encode("latin-1")
    lines = [b"%b %b HTTP/%b" % (method.encode(), raw, version.encode()), b"Host: " + host.encode()]
    if body is not None:
        if content_type is not None:
            lines.append(b"Content-Type: " + content_type.encode())
        lines.append(b"Content-Length: %d" % len(body))
    lines += [line if isinstance(line, bytes) else line.encode("latin-1") for line in fields]
    return b"\r\n".join([*lines, b"", b""]) + (body or b"")


def post(target: str, body: bytes, *fields: str | bytes, **options: Any) -> bytes:
    return request("POST", target, body, *fields, **options)


def get(target: str | bytes, *fields: str | bytes) -> bytes:
    return request("GET", target, None, *fields)


def completions(*fields: str | bytes, **members: Any) -> bytes:
    """A read on `/v1/completions`; members replace or extend those of READ1."""
    return post("/v1/completions", json.dumps({**json.loads(READ1_BODY), **members}).encode(), *fields)


READ1 = post("/v1/completions", READ1_BODY)
GEN = post("/v1/completions", GEN_BODY)
STREAM = post("/v1/completions", STREAM_BODY)


@dataclass
class Answer:
    """An answer as it arrived.

    Attributes:
        pieces: when each piece of the body came (`perf_counter`), and its bytes without chunk framing.
        whole: the body came to its framed end. Otherwise the connection ended first (`reset`: with RST).
        interim: statuses of the 1xx answers before it.
    """

    raw_head: bytes
    status: int
    reason: bytes
    fields: Fields
    head_at: float
    interim: list[int]
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    raw_body: bytearray = field(default_factory=bytearray)
    whole: bool = False
    reset: bool = False
    ended_at: float = 0.0

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.pieces)

    def get(self, name: str) -> bytes | None:
        """A field's value; None if it is absent, and an error if it stands there twice."""
        found = values(self.fields, name)
        assert len(found) < 2, f"{name} stands there {len(found)} times"
        return found[0] if found else None

    def all(self, name: str) -> list[bytes]:
        return values(self.fields, name)

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection. Nothing is read before it is asked for.

    `lenient`: it talks to the scripted engine itself, which may answer in HTTP/1.0 and with chunk extensions.
    """

    def __init__(self, sock: socket.socket, *, lenient: bool = False) -> None:
        self.sock = sock
        self.lenient = lenient
        self._buffer = b""
        self._reader: BodyReader | None = None

    @classmethod
    async def connect(
        cls, port: int, *, host: str = "127.0.0.1", receive_buffer: int | None = None, lenient: bool = False
    ) -> Self:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except BaseException:
            sock.close()
            raise
        return cls(sock, lenient=lenient)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self, timeout: float = 10.0, size: int = 262144) -> bytes:
        """What arrives next; b"" at the end. Raises ConnectionResetError on RST."""
        async with asyncio.timeout(timeout):
            return await asyncio.get_running_loop().sock_recv(self.sock, size)

    async def head(self, timeout: float = 10.0, *, method: str = "POST") -> Answer:
        """Read an answer's head. Raises ConnectionError if the connection ends before."""
        interim: list[int] = []
        while True:
            while b"\r\n\r\n" not in self._buffer:
                data = await self.receive(timeout)
                if not data:
                    raise ConnectionError(f"closed before a head, after {self._buffer[:80]!r}")
                self._buffer += data
            head, end, self._buffer = self._buffer.partition(b"\r\n\r\n")
            line, fields = parse_fields(head + end)
            version, status, reason = [*line.split(b" ", 2), b""][:3]
            assert version == b"HTTP/1.1" or self.lenient, line
            if 100 <= int(status) < 200 and int(status) != 101:
                interim.append(int(status))
                continue
            break
        answer = Answer(head + end, int(status), reason, fields, perf_counter(), interim)
        lengths = values(fields, "content-length")
        chunked = bool(values(fields, "transfer-encoding"))
        assert len(lengths) + chunked < 2, "more than one framing"
        bodyless = method == "HEAD" or answer.status in (101, 204, 304)
        length = 0 if bodyless else int(lengths[0]) if lengths else None
        self._reader = BodyReader(length, chunked and not bodyless, extensions=self.lenient)
        if self._buffer and self._reader is not None:
            self._take(answer, self._buffer)
        self._finish(answer)
        return answer

    async def more(self, answer: Answer, timeout: float = 10.0) -> bytes:
        """Read one further piece of the body; b"" at its end."""
        assert self._reader is not None
        while not answer.whole and not answer.ended_at:
            try:
                data = await self.receive(timeout)
            except ConnectionResetError:
                answer.reset = True
                answer.ended_at = perf_counter()
                return b""
            if not data:
                answer.whole = self._reader.to_close
                answer.ended_at = perf_counter()
                return b""
            before = len(answer.pieces)
            self._take(answer, data)
            self._finish(answer)
            if len(answer.pieces) > before:
                return answer.pieces[-1][1]
        return b""

    def _take(self, answer: Answer, data: bytes) -> None:
        assert self._reader is not None
        body, self._buffer = self._reader.feed(data)
        answer.raw_body += data[: len(data) - len(self._buffer)]
        if body:
            answer.pieces.append((perf_counter(), body))

    def _finish(self, answer: Answer) -> None:
        if self._reader is not None and self._reader.done:
            answer.whole = True
            answer.ended_at = perf_counter()

    async def rest(self, answer: Answer, timeout: float = 10.0) -> Answer:
        """Read to the answer's end."""
        async with asyncio.timeout(timeout):
            while not answer.whole and not answer.ended_at:
                await self.more(answer, timeout)
        return answer

    async def answer(self, timeout: float = 10.0, *, method: str = "POST") -> Answer:
        """Read a whole answer."""
        return await self.rest(await self.head(timeout, method=method), timeout)

    async def ask(self, data: bytes, timeout: float = 10.0) -> Answer:
        """Send a request and read its answer."""
        await self.send(data)
        return await self.answer(timeout, method=data.split(b" ", 1)[0].decode("latin-1"))

    async def closed(self, timeout: float = 5.0) -> bool:
        """Whether the other side ends the connection within `timeout`, without a further byte."""
        if self._buffer:
            return False
        try:
            return await self.receive(timeout) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def half_close(self) -> None:
        """Say that nothing more will be sent, and go on reading."""
        with contextlib.suppress(OSError):  # the other side has ended it already
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """End with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


async def ask(port: int, data: bytes, timeout: float = 10.0) -> Answer:
    """One request on a connection of its own."""
    async with await Client.connect(port) as client:
        return await client.ask(data, timeout)


async def end_of(client: Client, timeout: float = 5.0) -> bytes:
    """Everything until the other side ends the connection (RST counts as an end)."""
    seen = client._buffer
    async with asyncio.timeout(timeout):
        try:
            while data := await client.receive(timeout):
                seen += data
        except ConnectionResetError:
            pass
    return seen
