"""Logging: text or JSON lines on standard error. Never a prompt, a body or a credential."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Literal

access_logger = logging.getLogger("router.access")


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a record's `fields` (a dict) become members."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """For people: time, level, message, and the fields as `name=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        tail = "".join(f" {name}={value}" for name, value in fields.items() if value is not None)
        return super().format(record) + tail


def configure_logging(level: str, format: Literal["text", "json"]) -> None:
    """Send the router's log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger("router")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
