"""What docs/proxy-behavior.md says may differ, as code: a head on one side, and what the other side is to see."""

from __future__ import annotations

from tests.support.http import Fields, values

HOP_BY_HOP = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
    *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
}

CLIENT = b"127.0.0.1"


def end_to_end(fields: Fields) -> Fields:
    """Without what ends at each hop."""
    named = {token.strip().lower() for value in values(fields, "connection") for token in value.split(b",")}
    return [(name, value) for name, value in fields if name.lower() not in HOP_BY_HOP | named]


def at_the_engine(fields: Fields, authority: bytes, *, inspected: int | None) -> Fields:
    """The fields that the engine is to see of a request with these fields, in their order.

    Args:
        inspected: the body's size, if the router reads the whole of it; None if it is streamed or absent.
    """
    out: Fields = []
    chunked = bool(values(fields, "transfer-encoding"))
    for name, value in end_to_end([f for f in fields if f[0].lower() != b"transfer-encoding"]):
        lower = name.lower()
        if lower == b"host":
            out.append((name, authority))
        elif lower == b"expect" and inspected is not None:
            continue
        elif lower == b"x-forwarded-for":
            out.append((name, value + b", " + CLIENT))
        else:
            out.append((name, value))
    if chunked and inspected is not None:
        out.append((b"Content-Length", b"%d" % inspected))
    elif chunked:
        at = next(n for n, (name, _) in enumerate(fields) if name.lower() == b"transfer-encoding")
        before = len([f for f in end_to_end(fields) if f in fields[:at]])
        out.insert(before, (fields[at][0], b"chunked"))
    if not values(fields, "x-forwarded-for"):
        out.append((b"X-Forwarded-For", CLIENT))
    if not values(fields, "x-forwarded-proto"):
        out.append((b"X-Forwarded-Proto", b"http"))
    if not values(fields, "x-forwarded-host"):
        out.append((b"X-Forwarded-Host", values(fields, "host")[0]))
    return out


def at_the_client(status: int, fields: Fields, *, head: bool = False) -> Fields:
    """The fields that the client is to see of an answer with these fields, in their order."""
    out = [(n, v) for n, v in end_to_end(fields) if not (status == 204 and n.lower() == b"content-length")]
    if not values(fields, "content-length") and status not in (204, 304) and not head:
        out.append((b"Transfer-Encoding", b"chunked"))
    return out
