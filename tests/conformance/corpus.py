"""Requests and answers as clients and engines really write them, and some that they should not but may."""

from __future__ import annotations

import gzip

from tests.support.answers import STREAM_HEAD, chunk
from tests.support.client import GEN_BODY, STREAM_BODY

BINARY = bytes(range(256)) * 40
MULTIPART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + BINARY + b"\r\n--b--\r\n"


def raw(line: bytes, *fields: bytes, body: bytes = b"") -> bytes:
    sized = (b"Content-Length: %d" % len(body),) if body else ()
    return b"\r\n".join([line + b" HTTP/1.1", *fields, *sized, b"", b""]) + body


HOST = b"Host: api.example"
JSON = b"Content-Type: application/json"

REQUESTS: dict[str, bytes] = {
    "bare get": raw(b"GET /v1/models", HOST),
    "curl": raw(b"GET /v1/models?limit=5&after=%2Fx", HOST, b"User-Agent: curl/8.5.0", b"Accept: */*"),
    "head": raw(b"HEAD /health", HOST),
    "delete": raw(b"DELETE /v1/files/file-1", HOST, b"Authorization: Bearer k"),
    "options": raw(b"OPTIONS /v1/chat/completions", HOST, b"Origin: http://x", b"Access-Control-Request-Method: POST"),
    "odd target": raw(b"GET /a//b/../c;p=1?q=a+b%20c&&y=[1]|{}", HOST),
    "generation": raw(b"POST /v1/completions", HOST, JSON, body=GEN_BODY),
    "stream": raw(b"POST /v1/completions", HOST, JSON, b"Accept: text/event-stream", body=STREAM_BODY),
    "length first": raw(b"POST /v1/completions", b"content-length: %d" % len(GEN_BODY), HOST, JSON) + GEN_BODY,
    "openai sdk": raw(
        b"POST /v1/chat/completions",
        *(b"Host: 127.0.0.1:9000", b"Accept-Encoding: gzip, deflate, br, zstd", b"Connection: keep-alive"),
        *(b"Accept: application/json", b"Content-Type: application/json", b"User-Agent: OpenAI/Python 3.57.0"),
        *(b"X-Stainless-Lang: python", b"X-Stainless-Retry-Count: 0", b"x-stainless-read-timeout: 600"),
        b"Authorization: Bearer sk-123",
        body=b'{"messages":[{"role":"user","content":"hi"}],"model":"m"}',
    ),
    "cookies": raw(b"GET /", HOST, b"Cookie: a=1; b=2", b"Cookie: c=3"),
    "doubled and empty fields": raw(b"GET /", HOST, b"X-A: 1", b"x-a: 2", b"X-Empty:", b"X-A: 1"),
    "white space": raw(b"GET /", b"hOST:api.example", b"X-A:   padded \t ", b"X-B:\ttab\tinside"),
    "bytes": raw(b"GET /", HOST, b"X-N: caf\xc3\xa9\xff"),
    "hop by hop": raw(b"GET /", HOST, b"Connection: keep-alive, X-A", b"X-A: 1", b"Keep-Alive: 5", b"TE: trailers"),
    "forwarded": raw(b"GET /", HOST, b"X-Forwarded-For: 1.2.3.4", b"X-Forwarded-Proto: https", b"Forwarded: for=x"),
    "own bypass": raw(b"GET /", HOST, b"x-cache-bypass: 9"),
    "multipart": raw(
        b"POST /v1/audio/transcriptions", HOST, b"Content-Type: multipart/form-data; boundary=b", body=MULTIPART
    ),
    "binary put": raw(b"PUT /v1/files/x", HOST, b"Content-Type: application/octet-stream", body=BINARY),
    "compressed": raw(b"POST /v1/completions", HOST, JSON, b"Content-Encoding: gzip", body=gzip.compress(GEN_BODY)),
    "unparsable": raw(b"POST /v1/completions", HOST, JSON, body=b'{"max_tokens":1,"logprobs":'),
    "empty post": raw(b"POST /v1/completions", HOST, JSON, b"Content-Length: 0"),
    "post without a length": raw(b"POST /reset_prefix_cache", HOST),
    "chunked upload": raw(b"POST /v1/files", HOST, b"Transfer-Encoding: chunked", b"X-A: 1")
    + chunk(b"hello ") + chunk(b"world") + b"0\r\n\r\n",
    "chunked generation": raw(b"POST /v1/completions", HOST, b"transfer-encoding: chunked", JSON)
    + chunk(GEN_BODY[:9]) + chunk(GEN_BODY[9:]) + b"0\r\nX-Trailer: 1\r\n\r\n",
    "h2c offer": raw(
        b"POST /v1/completions",
        *(b"Connection: Upgrade, HTTP2-Settings", HOST, b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk", b"Upgrade: h2c"),
        *(b"User-Agent: Java-http-client/17.0.15", JSON),
        body=GEN_BODY,
    ),
}  # fmt: skip


def answer(status: bytes, *fields: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, *fields, b"", b""]) + body


def sized(status: bytes, body: bytes, *fields: bytes) -> bytes:
    return answer(status, *fields, b"Content-Length: %d" % len(body), body=body)


EVENTS = b': ping\r\n\r\ndata:{"a":1}\n\nevent: x\nid: 7\ndata: \xe6\x97\xa5\n\ndata: [DONE]\n\n'

ANSWERS: dict[str, bytes] = {
    "json": sized(b"200 OK", b'{"a":1.0}', JSON),
    "fields of an engine": sized(
        *(b"200 OK", b"{}", b"date: Tue, 01 Dec 2026 12:00:00 GMT", b"server: uvicorn", b"X-Request-Id: r"),
        b"content-type: application/json",
    ),
    "length in the middle": answer(b"200 OK", b"X-A: 1", b"content-LENGTH: 2", b"x-b: 2", body=b"{}"),
    "doubled fields": sized(b"200 OK", b"{}", b"Set-Cookie: a=1", b"X-D: 1", b"set-cookie: b=2", b"X-D: 2", b"X-E:"),
    "bytes": sized(b"200 OK", b"{}", b"X-N: caf\xc3\xa9\xff"),
    "odd reason": sized(b"200 All is well, \xc3\xa9", b"{}"),
    "no reason": sized(b"200 ", b"{}"),
    "odd status": sized(b"299 Odd", b"{}"),
    "bad request": sized(b"400 Bad Request", b'{"error":{"message":"x"}}', JSON, b"x-should-retry: false"),
    "unauthorized": sized(b"401 Unauthorized", b"{}", b'WWW-Authenticate: Bearer realm="x"'),
    "too many": sized(b"429 Too Many Requests", b"{}", b"Retry-After: 30"),
    "server error": sized(b"500 Internal Server Error", b"Internal Server Error", b"content-type: text/plain"),
    "unavailable": sized(b"503 Service Unavailable", b"{}", b"Retry-After: 5"),
    "redirect": sized(b"307 Temporary Redirect", b"", b"Location: http://10.0.0.9/x"),
    "empty": sized(b"200 OK", b""),
    "no content": answer(b"204 No Content", b"X-A: 1"),
    "not modified": answer(b"304 Not Modified", b'ETag: "x"'),
    "events": STREAM_HEAD + b"".join(chunk(EVENTS[at : at + 11]) for at in range(0, len(EVENTS), 11)) + b"0\r\n\r\n",
    "chunks with extensions and trailers": STREAM_HEAD + b"5;a=b\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
    "compressed": sized(b"200 OK", gzip.compress(b"{}" * 500), JSON, b"Content-Encoding: gzip", b"Vary: Accept"),
    "hop by hop": sized(b"200 OK", b"{}", b"Connection: X-Gone", b"X-Gone: 1", b"Keep-Alive: timeout=5", b"X-Stays: 1"),
    "large": sized(b"200 OK", BINARY * 100, b"Content-Type: application/octet-stream"),
    "hints before": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + sized(b"200 OK", b"{}"),
    "up to the close": answer(b"200 OK", b"Connection: close", b"Content-Type: text/plain", body=b"hello"),
    "http 1.0": b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello",
}  # fmt: skip
