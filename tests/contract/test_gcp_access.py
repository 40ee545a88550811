"""The Google adapter's answers that never came, and its credentials. PC-001, PC-031."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from canned_gcp import Canned, create, delete, everything

from fleet.errors import (
    Ambiguous,
    Unauthorized,
    Unavailable,
)
from providers import gcp
from providers.gce.codes import LOCAL, translate

google_auth = pytest.importorskip("google.auth.exceptions")
NOTHING: Mapping[str, Any] = {}


def test_a_lost_answer_is_ambiguous_for_create_and_busy_for_the_rest() -> None:
    """A connection that is cut, and one that says nothing."""
    for script in (lambda _: (0, NOTHING), lambda _: (-1, NOTHING)):
        p = Canned(script, timeout_s=0.2)
        assert type(p.error(create)) is Ambiguous
        assert type(p.error(delete)) is Unavailable
        assert type(p.error(everything)) is Unavailable


def test_nobody_listening_is_busy_for_create_too() -> None:
    """Nothing was sent."""
    p = Canned(lambda _: (200, NOTHING), endpoint="http://127.0.0.1:9")
    assert type(p.error(create)) is Unavailable


def test_answers_that_are_no_json_or_no_operation() -> None:
    """A proxy's page: the launch may have happened."""
    assert type(Canned(lambda _: (200, {"id": "not a number"})).error(create)) is Ambiguous


def test_no_credentials_is_unauthorized_and_says_where_it_looked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """PC-031: a file that does not exist; renewed credentials work without a restart."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    p = Canned(lambda _: (200, {}), emulator_credentials=False)
    error = p.error(create)
    assert type(error) is Unauthorized
    assert "Application Default Credentials" in error.message


def test_credentials_that_expire_are_read_anew_with_the_next_call() -> None:
    """PC-031: a refresh that fails is Unauthorized; afterwards everything works by itself."""

    async def work(provider: gcp.Gcp) -> None:
        await everything(provider)
        first = provider._account._clients
        assert first is not None

        def expired(*_: object) -> None:
            raise google_auth.RefreshError("('invalid_grant: Token has been expired or revoked.')")

        session = first.instances.transport._session
        session.credentials.before_request = expired
        with pytest.raises(Unauthorized, match="expired or revoked"):
            await everything(provider)
        await everything(provider)
        assert provider._account._clients is not first

    Canned(lambda _: (200, {})).run(work)


def test_errors_of_the_sdk_itself() -> None:
    """Every class of the table, by name; those that are the token server's trouble are Busy."""
    for name, kind in LOCAL.items():
        error = translate(type(name, (Exception,), {})("the words"), creates=True)
        assert (type(error), error.code) == (kind, name)
        assert "the words" in error.message
    assert type(translate(google_auth.RefreshError("no", retryable=True), creates=True)) is (
        Unavailable
    )
    assert type(translate(google_auth.TransportError("no way"), creates=True)) is Unavailable
    assert type(translate(google_auth.DefaultCredentialsError("none"), creates=True)) is (
        Unauthorized
    )
    assert type(translate(ValueError("?"), creates=True)) is Ambiguous
    assert type(translate(ValueError("?"), creates=False)) is Unavailable
