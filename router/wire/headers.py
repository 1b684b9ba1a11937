"""Which header fields cross the proxy, and the heads that are written. Names keep their case and their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from router.wire.message import Field, ResponseHead

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

# A Connection field that names one of these would silently strip what the request cannot do without.
END_TO_END = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"cookie",
        b"expect",
        b"host",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
    }
)

_NO_OPTIONS: frozenset[bytes] = frozenset()
_EMPTY = frozenset({b""})

_REASON = {431: b"Request Header Fields Too Large"}


def connection_options(fields: Sequence[Field]) -> frozenset[bytes]:
    """The lower-case names that Connection fields list."""
    found = _NO_OPTIONS
    for lower, _, value in fields:
        if lower == b"connection":
            found |= {token.strip().lower() for token in value.split(b",")}
    return found - _EMPTY if found else found


def request_head(
    method: bytes,
    target: bytes,
    fields: Sequence[Field],
    *,
    authority: bytes,
    preserve_host: bool = False,
    peer: bytes | None = None,
    scheme: bytes = b"http",
    length: int | None = None,
    chunked: bool = False,
    drop: frozenset[bytes] = frozenset(),
    add: Iterable[tuple[bytes, bytes]] = (),
    upgrade: bytes | None = None,
) -> bytes:
    """The head that goes to an endpoint.

    Args:
        authority: what `Host` becomes, unless `preserve_host`.
        peer: the client's address, appended to X-Forwarded-For.
        length: the body's size; the client's own Content-Length line is kept where it says the same.
        chunked: send the body chunked. With neither, the request has no framing fields of its own.
        drop: further lower-case names to leave out.
        add: fields to append.
        upgrade: keep the connection upgrade to this protocol (a tunnel).
    """
    options = connection_options(fields)
    out = [method, b" ", target, b" HTTP/1.1\r\n"]
    framed = host_seen = proto_seen = forwarded_host_seen = False
    host: bytes | None = None
    forwarded_at = -1
    for lower, name, value in fields:
        if lower == b"host":
            host = value
            host_seen = True
            out += (name, b": ", value if preserve_host else authority, b"\r\n")
        elif lower == b"content-length":
            if length is not None and not framed:
                framed = True
                out += (name, b": ", b"%d" % length, b"\r\n")
        elif lower == b"transfer-encoding":
            if chunked and not framed:
                framed = True
                out += (name, b": chunked\r\n")
        elif lower in HOP_BY_HOP or lower in drop or lower in options:
            continue
        elif lower == b"x-forwarded-for":
            forwarded_at = len(out) + 2
            out += (name, b": ", value, b"\r\n")
        else:
            if lower == b"x-forwarded-proto":
                proto_seen = True
            elif lower == b"x-forwarded-host":
                forwarded_host_seen = True
            out += (name, b": ", value, b"\r\n")
    if not host_seen:
        out += (b"Host: ", authority, b"\r\n")
    if not framed:
        if length is not None:
            out.append(b"Content-Length: %d\r\n" % length)
        elif chunked:
            out.append(b"Transfer-Encoding: chunked\r\n")
    if peer is not None:
        if forwarded_at >= 0:
            out[forwarded_at] += b", " + peer
        else:
            out += (b"X-Forwarded-For: ", peer, b"\r\n")
    if not proto_seen:
        out += (b"X-Forwarded-Proto: ", scheme, b"\r\n")
    if host is not None and not forwarded_host_seen:
        out += (b"X-Forwarded-Host: ", host, b"\r\n")
    if upgrade is not None:
        out += (b"Connection: Upgrade\r\nUpgrade: ", upgrade, b"\r\n")
    for name, value in add:
        out += (name, b": ", value, b"\r\n")
    out.append(b"\r\n")
    return b"".join(out)


def response_fields(head: ResponseHead, *, drop: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    """The fields of an endpoint's answer that cross to the client, in their order. Framing is left to the server."""
    options = connection_options(head.fields)
    return [
        (name, value)
        for lower, name, value in head.fields
        if lower not in HOP_BY_HOP and lower not in options and lower not in drop
    ]


def status_line(status: int, reason: bytes | None = None) -> bytes:
    """A status line; `reason` as the endpoint wrote it, or the standard phrase."""
    if reason is None:
        reason = _REASON.get(status)
        if reason is None:
            from http import HTTPStatus

            try:
                reason = HTTPStatus(status).phrase.encode("ascii")
            except ValueError:
                reason = b""
            _REASON[status] = reason
    return b"HTTP/1.1 %d %s\r\n" % (status, reason)
