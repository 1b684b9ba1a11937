"""Answers that the router itself makes: OpenAI-shaped JSON errors, whole and ready to write."""

from __future__ import annotations

import json
from collections.abc import Iterable

from router.wire.headers import status_line


def error_body(code: str, message: str) -> bytes:
    """`{"error":{"message","type":"router_error","param":null,"code"}}` in UTF-8."""
    error = {"message": message, "type": "router_error", "param": None, "code": code}
    return json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":")).encode()


def refusal(status: int, code: str, message: str, fields: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """A whole answer that ends the connection."""
    body = error_body(code, message)
    head = [status_line(status), b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)]
    head += [name + b": " + value + b"\r\n" for name, value in fields]
    head.append(b"connection: close\r\n\r\n")
    return b"".join(head) + body
