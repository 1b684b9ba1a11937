"""Whether a peer has left whose socket is not being read: no event says so while reading is paused."""

from __future__ import annotations

import socket
import sys

ESTABLISHED = 1


def has_left(sock: socket.socket) -> bool:
    """The peer closed or reset. Where the system cannot tell of a close, only a reset is seen."""
    try:
        if sys.platform == "linux":
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
    except OSError:
        return True
