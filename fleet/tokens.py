"""Secrets of the agent protocol: how they are made and how they are compared.

Invariant: only SHA-256 digests are stored, and a boot token is derived from the cell's key, so
that instances of a batch whose record was lost with the database can join after adoption.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from fleet.errors import InputError

KEY_BYTES = 32


def digest(secret: str) -> str:
    """How a secret is stored and looked up."""
    return hashlib.sha256(secret.encode()).hexdigest()


def boot_token(key: bytes, token: str) -> str:
    """The boot token of the batch ``token``."""
    return hmac.new(key, f"boot:{token}".encode(), hashlib.sha256).hexdigest()


def load_key(path: Path, fresh: bytes) -> bytes:
    """The cell's key from ``path`` (0600), written from ``fresh`` if there is none yet."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(fresh[:KEY_BYTES])
            file.flush()
            os.fsync(file.fileno())
        return fresh[:KEY_BYTES]
    if len(key) != KEY_BYTES:
        raise InputError(f"{path} is not a {KEY_BYTES}-byte key: restore it from a backup")
    return key
