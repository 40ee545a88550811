"""User data: what a new instance is told, and how the agent reads it.

Invariant: user data carries the boot token and no cloud credential, is the same byte for byte for
the same inputs (an idempotent create must repeat the identical body), and stays under 12 KiB, the
common bound of the four clouds (EC2 takes 16 KB before base64; clouds.md 6).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from fleet.errors import InputError

MAX_BYTES = 12 * 1024
PATH = "/etc/fleet-agent/boot.json"
_HEAD = "#cloud-config\nwrite_files:\n- path: " + PATH + "\n  permissions: '0600'\n  content: '"
_TAIL = "'\nruncmd:\n- [systemctl, enable, --now, fleet-agent]\n"


@dataclass(frozen=True, slots=True)
class BootData:
    """What the agent needs to join: where fleetd is and the secret of its create call."""

    server: str
    boot_token: str
    provider: str
    pool: str
    image: str = ""


def render(boot: BootData) -> str:
    """The cloud-init document for ``boot``; raises InputError if it would be too long."""
    body = json.dumps(asdict(boot), sort_keys=True, separators=(",", ":")).replace("'", "\\u0027")
    text = _HEAD + body + _TAIL
    if len(text.encode()) > MAX_BYTES:
        raise InputError(f"user data is {len(text)} bytes, at most {MAX_BYTES} fit every cloud")
    return text


def parse(user_data: str) -> BootData:
    """The BootData inside a document made by ``render``; raises InputError if there is none."""
    start, end = user_data.find(_HEAD), user_data.rfind(_TAIL)
    if start != 0 or end < 0:
        raise InputError("user data was not made by fleetd")
    try:
        return BootData(**json.loads(user_data[len(_HEAD) : end]))
    except (ValueError, TypeError):
        raise InputError("the boot data in the user data is damaged") from None
