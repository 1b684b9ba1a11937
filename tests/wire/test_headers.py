"""Which fields cross, and what the heads look like, to the byte."""

from __future__ import annotations

import pytest

from router.wire.headers import connection_options, request_head, response_fields, status_line
from router.wire.message import Field, ResponseHead


def fields(*pairs: tuple[bytes, bytes]) -> list[Field]:
    return [(name.lower(), name, value) for name, value in pairs]


def test_names_keep_case_and_order_and_host_is_rewritten_in_place() -> None:
    head = request_head(
        b"POST",
        b"/a//b/../c?x=[1]&&z",
        fields((b"X-b", b"2"), (b"hOsT", b"pub.example:8443"), (b"x-A", b"1")),
        authority=b"127.0.0.1:8000",
        length=3,
    )
    assert head == (
        b"POST /a//b/../c?x=[1]&&z HTTP/1.1\r\nX-b: 2\r\nhOsT: 127.0.0.1:8000\r\nx-A: 1\r\nContent-Length: 3\r\n"
        b"X-Forwarded-Proto: http\r\nX-Forwarded-Host: pub.example:8443\r\n\r\n"
    )


def test_hop_by_hop_fields_and_those_that_connection_names_end_here() -> None:
    head = request_head(
        b"GET",
        b"/",
        fields(
            (b"Host", b"a"),
            (b"Connection", b"keep-alive, X-Secret"),
            (b"X-Secret", b"1"),
            (b"Keep-Alive", b"timeout=9"),
            (b"TE", b"trailers"),
            (b"Trailer", b"X"),
            (b"Proxy-Connection", b"x"),
            (b"Upgrade", b"foo"),
            (b"X-Kept", b"1"),
        ),
        authority=b"e",
    )
    assert head == b"GET / HTTP/1.1\r\nHost: e\r\nX-Kept: 1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a\r\n\r\n"


def test_forwarded_for_is_appended_and_a_balancer_s_proto_and_host_stay() -> None:
    head = request_head(
        b"GET",
        b"/",
        fields(
            (b"X-Forwarded-For", b"9.9.9.9"),
            (b"X-Forwarded-Proto", b"https"),
            (b"X-Forwarded-Host", b"pub"),
            (b"Host", b"a"),
        ),
        authority=b"e",
        peer=b"127.0.0.1",
    )
    assert b"X-Forwarded-For: 9.9.9.9, 127.0.0.1\r\n" in head
    assert head.count(b"X-Forwarded-") == 3


def test_without_a_forwarded_for_one_is_added() -> None:
    assert b"X-Forwarded-For: ::1\r\n" in request_head(b"GET", b"/", [], authority=b"e", peer=b"::1")


def test_without_a_host_the_authority_is_sent() -> None:
    assert b"Host: e\r\n" in request_head(b"GET", b"/", [], authority=b"e")


def test_preserve_host_keeps_the_clients() -> None:
    assert b"Host: a\r\n" in request_head(b"GET", b"/", fields((b"Host", b"a")), authority=b"e", preserve_host=True)


@pytest.mark.parametrize(
    ("sent", "length", "chunked", "line"),
    [
        ((b"content-length", b"3"), 3, False, b"content-length: 3\r\n"),
        ((b"content-length", b"3"), 9, False, b"content-length: 9\r\n"),
        ((b"Transfer-Encoding", b"chunked"), 9, False, b"Content-Length: 9\r\n"),
        ((b"Transfer-Encoding", b"chunked"), None, True, b"Transfer-Encoding: chunked\r\n"),
        ((b"X", b"y"), None, True, b"Transfer-Encoding: chunked\r\n"),
    ],
)
def test_exactly_one_framing_field(sent: tuple[bytes, bytes], length: int | None, chunked: bool, line: bytes) -> None:
    head = request_head(b"POST", b"/", fields(sent), authority=b"e", length=length, chunked=chunked)
    assert line in head
    assert head.lower().count(b"content-length") + head.lower().count(b"transfer-encoding") == 1


def test_added_fields_and_a_tunnel_s_upgrade() -> None:
    head = request_head(
        b"GET",
        b"/",
        fields((b"A", b"1")),
        authority=b"e",
        drop=frozenset({b"a"}),
        add=[(b"B", b"2")],
        upgrade=b"websocket",
    )
    assert b"A: 1" not in head
    assert head.endswith(b"Connection: Upgrade\r\nUpgrade: websocket\r\nB: 2\r\n\r\n")


def test_answer_fields_lose_only_the_hop_by_hop_ones() -> None:
    head = ResponseHead(
        200,
        b"OK",
        fields(
            (b"Connection", b"X-Up"), (b"X-Up", b"1"), (b"Set-Cookie", b"a"), (b"Set-Cookie", b"b"), (b"ETag", b"x")
        ),
        None,
        True,
        False,
    )
    assert response_fields(head) == [(b"Set-Cookie", b"a"), (b"Set-Cookie", b"b"), (b"ETag", b"x")]
    assert response_fields(head, drop=frozenset({b"etag"})) == [(b"Set-Cookie", b"a"), (b"Set-Cookie", b"b")]
    assert head.get(b"etag") == b"x"
    assert head.get(b"missing") is None


def test_connection_options_of_several_fields() -> None:
    assert connection_options(fields((b"Connection", b"a, B,,"), (b"connection", b"close"))) == {b"a", b"b", b"close"}
    assert connection_options([]) == frozenset()


def test_status_lines() -> None:
    assert status_line(200, b"Fine") == b"HTTP/1.1 200 Fine\r\n"
    assert status_line(404) == b"HTTP/1.1 404 Not Found\r\n"
    assert status_line(431) == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    assert status_line(599) == b"HTTP/1.1 599 \r\n"
