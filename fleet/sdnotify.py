"""Telling systemd how we are: sd_notify(3) without a library.

Invariant: without ``NOTIFY_SOCKET`` nothing happens; telling never raises and never blocks.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(**fields: str) -> None:
    """Send ``NAME=value`` lines, such as ``notify(READY="1", STATUS="12 nodes")``."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    text = "\n".join(f"{name}={' '.join(value.split())}" for name, value in fields.items())
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(text.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


def watchdog_s() -> float | None:
    """Seconds within which systemd wants ``WATCHDOG=1``, None when it does not watch us."""
    pid = os.environ.get("WATCHDOG_PID", "")
    usec = os.environ.get("WATCHDOG_USEC", "")
    if not usec.isdigit() or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1e6
