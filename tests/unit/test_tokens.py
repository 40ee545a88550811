"""Secrets: derived, digested, and a key file that is never silently replaced."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import InputError
from fleet.tokens import KEY_BYTES, boot_token, digest, load_key

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

KEY = bytes(range(32))


@given(key=st.binary(min_size=32, max_size=32), a=st.text(), b=st.text())
def test_boot_tokens_are_repeatable_and_distinct(key: bytes, a: str, b: str) -> None:
    assert boot_token(key, a) == boot_token(key, a)
    assert (boot_token(key, a) == boot_token(key, b)) == (a == b)
    assert boot_token(key, a) != boot_token(bytes(32 * [0x5C]), a) or key == bytes(32 * [0x5C])
    assert len(boot_token(key, a)) == 64


def test_a_digest_is_sha256() -> None:
    assert digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_key_is_written_once_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "cell.key"
    assert load_key(path, KEY + b"more") == KEY
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_key(path, bytes(32)) == KEY, "an existing key wins"


@pytest.mark.parametrize("content", [b"", b"short", bytes(KEY_BYTES + 1)])
def test_a_damaged_key_is_refused_and_not_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cell.key"
    path.write_bytes(content)
    with pytest.raises(InputError, match="backup"):
        load_key(path, KEY)
    assert path.read_bytes() == content
