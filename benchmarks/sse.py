"""An engine that streams events at a fixed pace, and a client that counts them."""

from __future__ import annotations

import asyncio
import re
import sys

import uvloop

EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)


class Engine(asyncio.Protocol):
    """Answers streams to bodies that ask for one, `{}` to everything else."""

    def __init__(self, events: int, gap: float) -> None:
        self.events, self.gap = events, gap
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self.buffer[:end])
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self.buffer) < size:
                return
            request, self.buffer = self.buffer[:size], self.buffer[size:]
            if b'"stream":true' in request:
                self.transport.write(HEAD)
                self.tick(self.events)
            else:
                self.transport.write(PLAIN)

    def tick(self, left: int) -> None:
        if self.transport.is_closing():
            return
        if not left:
            self.transport.write(b"0\r\n\r\n")
            return
        self.transport.write(CHUNK)
        asyncio.get_running_loop().call_later(self.gap, self.tick, left - 1)


async def serve(port: int, events: int, gap: float) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: Engine(events, gap), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


async def read_stream(port: int) -> int:
    """One stream to its end; how many events came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}'
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    events, tail = 0, b""
    while data := await reader.read(65536):
        events += data.count(b"data: ")
        tail = (tail + data)[-7:]
        if tail.endswith(b"\r\n0\r\n\r\n"):
            break
    writer.close()
    return events


async def read_streams(port: int, streams: int) -> int:
    return sum(await asyncio.gather(*(read_stream(port) for _ in range(streams))))


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
