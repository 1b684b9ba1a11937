"""Request bytes for the framing fuzz: mostly right, with every ambiguity that two parsers were ever seen to read in
two ways; and what a strict reader makes of them."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from hypothesis import strategies as st

from tests.support.http import BodyReader, Violation, framing, parse_fields, request_line, values


class Seen(NamedTuple):
    """A request as a strict reader understands it."""

    method: bytes
    target: bytes
    body: bytes


def often(usual: list[bytes], odd: list[bytes]) -> st.SearchStrategy[bytes]:
    """Mostly one of the usual, now and then an odd one."""
    return st.integers(0, 9).flatmap(lambda n: st.sampled_from(odd if n == 0 else usual))


METHODS = often([b"GET", b"POST", b"PUT", b"DELETE"], [b"HEAD", b"OPTIONS", b"get", b"FOO", b"GE T", b"", b"PROPFIND"])
TARGETS = often(
    [b"/", b"/v1/completions", b"/v1/files", b"/a%2Fb?x=[1]&&y", b"//h/x"],
    [b"*", b"http://other.test/x?y", b"other.test:80", b"/a b", b"/\xc3\xa9", b"", b"/\x00", b"/\t", b"/x#f"],
)
VERSIONS = often([b"HTTP/1.1"], [b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 ", b"", b"HTTP/11"])
ENDS = often([b"\r\n"], [b"\n", b"\r", b"\r\n ", b"\r\r\n", b"\n\r\n", b"\x00\r\n"])
HOSTS = often([b"Host: test"], [b"", b"Host: a\r\nHost: b", b"host : x", b"Host:", b" Host: x", b"Host\t: x"])
LENGTH_FIELDS = [
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Content-Length: 05",
    b"content-length:5 ",
    b"Content-Length: +5",
    b"Content-Length: 5, 5",
    b"Content-Length: 5\r\nContent-Length: 6",
    b"Content-Length : 5",
    b"Content-Length: 5 5",
    b"Content-Length: 0x5",
    b"Content-Length: \x0b5",
    b"Content-Length: 5\x00",
    b"Content_Length: 5",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    b"Content-Length: 18446744073709551621",
    b"Content-Length:",
]
CODING_FIELDS = [
    b"Transfer-Encoding: chunked",
    b"transfer-encoding:chunked",
    b"Transfer-Encoding: Chunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    b"X: Y\n",
    b"Transfer-Encoding: identity\r\nContent-Length: 5",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding: chunked\r\n folded",
    b"Transfer-Encoding: chunked;q=1",
    b"Transfer-Encoding: ,chunked",
]
OTHER_FIELDS = [
    b"X-A: 1",
    b"X-A: caf\xc3\xa9",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: X-A",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
    b"X-A:\x0bx",
    b"X-A: a\rb: c",
    b"Content-Type: application/json",
    b"Content-Encoding: gzip",
    b"X\x01: 1",
    b"no colon",
    b"X-Empty:",
    b"X-A: 1\r\n two",
    b"Connection: Content-Length",
    b"Connection: Transfer-Encoding",
    b"Trailer: X-T",
    b"TE: trailers",
    b"X A: 1",
    b"Upgrade: foo",
    b"Connection: upgrade\r\nUpgrade: foo, bar",
    b"Proxy-Connection: x",
    b"X-Long: " + b"a" * 3000,
]
SPACES = re.compile(rb" +")
"""Several spaces in a request line count as one (RFC 9112, 3): the router writes one."""

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: test\r\n\r\n"
CHUNKED_BODIES = [
    b"0\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5;ext=1\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
    b"005\r\nhello\r\n0\r\n\r\n",
    b"5\nhello\n0\n\n",
    b"5\r\nhelloX\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"fffffffffffffffff\r\n",
    b"5\r\nhell",
    b"0\r\n",
    b"0\r\n\r\n" + SMUGGLED,
    b"0\r\nContent-Length: 9\r\n\r\n" + SMUGGLED,
    b"5\rhello\r\n0\r\n\r\n",
    b"5;\nhello\r\n0\r\n\r\n",
    b"2;x\x00\r\nhi\r\n0\r\n\r\n",
    b"5\r\nhello0\r\n\r\n",
    b"5\r\nhello\n0\r\n\r\n",
    b"\r\n5\r\nhello\r\n0\r\n\r\n",
    b"0\r\nX: \n\r\n" + SMUGGLED,
]
PLAIN_BODIES = [b"", b"hello", b"hello" + SMUGGLED, b"hel", b"hello\r\n", b"\r\n", SMUGGLED, b'{"model":"m"}']


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """One request, whose parts need not agree."""
    end = draw(ENDS)
    kind = draw(st.sampled_from(["none", "length", "length", "chunked", "chunked", "either"]))
    framed = {
        "none": [b""],
        "length": LENGTH_FIELDS if draw(st.booleans()) else LENGTH_FIELDS[:2],
        "chunked": CODING_FIELDS if draw(st.booleans()) else CODING_FIELDS[:2],
        "either": LENGTH_FIELDS + CODING_FIELDS,
    }[kind]
    bodies = {"none": PLAIN_BODIES[:1], "length": PLAIN_BODIES, "chunked": CHUNKED_BODIES}
    fields = [draw(HOSTS), draw(st.sampled_from(framed)), *draw(st.lists(st.sampled_from(OTHER_FIELDS), max_size=3))]
    lines = [
        b" ".join((draw(METHODS), draw(TARGETS), draw(VERSIONS))),
        *draw(st.permutations([f for f in fields if f])),
    ]
    head = b"".join(line + (end if draw(st.integers(0, 7)) == 0 else b"\r\n") for line in lines)
    return head + b"\r\n" + draw(st.sampled_from(bodies.get(kind, PLAIN_BODIES + CHUNKED_BODIES)))


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """What one client sends: one to three requests, perhaps with a byte changed, cut into segments."""
    data = b"".join(draw(st.lists(messages(), min_size=1, max_size=3)))
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(data)))
        byte = draw(st.sampled_from([b"", b"\r", b"\n", b"\x00", b" ", b"\t", b":", b"0", b"\xff", b","]))
        data = data[:at] + byte + data[at + draw(st.integers(0, 1)) :]
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=3)))
    bounds = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(bounds) if b > a]


def understood(data: bytes) -> tuple[list[Seen], bool]:
    """The complete requests at the front of `data`, and whether what follows is malformed, not only unfinished."""
    found: list[Seen] = []
    while data:
        data = data.lstrip(b"\r\n")  # empty lines before a request line are skipped (RFC 9112, 2.2)
        head, end, data = data.partition(b"\r\n\r\n")
        if not end:
            return found, False
        try:
            line, fields = parse_fields(head + end)
            method, target, version = request_line(SPACES.sub(b" ", line))
            length, chunked = framing(fields)
            if len(values(fields, "host")) != 1 and version == b"1":
                raise Violation("Host")
            reader = BodyReader(0 if length is None and not chunked else length, chunked, extensions=True)
            body, data = reader.feed(data)
        except Violation:
            return found, True
        if not reader.done:
            return found, False
        found.append(Seen(method, target, body))
        options = b",".join(values(fields, "connection")).lower()
        if version == b"0" or b"close" in options:
            return found, False
    return found, False
