"""The EC2 adapter's way to the cloud: credentials, sessions, answers that never come.

PC-030, PC-031, PC-032: credentials.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from canned_ec2 import (
    SPEC,
    Canned,
    caught,
    everything,
    ran,
    refusal,
    run,
)

from fleet.clock import LoopClock
from fleet.errors import (
    Ambiguous,
    Unauthorized,
    Unavailable,
)
from fleet.model import Market, Need
from providers import aws
from providers.ec2 import Region


def test_credentials_are_read_anew_after_a_refusal() -> None:
    """PC-031: rotated under a running daemon, without a restart; no refusal, no new session."""
    answers = iter([ran(0, 1, 2), refusal("ExpiredToken"), ran(0, 1, 2), ran(0, 1, 2)])
    p = Canned(lambda _: next(answers))

    async def main() -> list[int]:
        sessions = list[int]()
        await p.create(SPEC)
        sessions.append(p.sessions)
        await caught(p.create(SPEC))
        await p.create(SPEC)
        sessions.append(p.sessions)
        await p.create(SPEC)
        sessions.append(p.sessions)
        return sessions

    assert run(main()) == [1, 2, 2]


def test_sessions_have_a_maximum_age() -> None:
    """PC-031: a new one after session_max_age_s even when nobody complained."""

    class Clock(LoopClock):
        at = 0.0

        def monotonic(self) -> float:
            return self.at

    p = Canned(lambda _: ran(0, 1, 2))
    p._clock = clock = Clock()

    async def main() -> list[int]:
        sessions = list[int]()
        for at in (0, 3599, 3601, 3700):
            clock.at = at
            await p.create(SPEC)
            sessions.append(p.sessions)
        return sessions

    assert run(main()) == [1, 1, 2, 2]


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A machine without any AWS credentials."""
    import os

    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.mark.usefixtures("no_credentials")
def test_missing_credentials_are_unauthorized_and_found_when_they_come(tmp_path: Any) -> None:
    """Clear words, nothing sent; a login made meanwhile is used by the next call."""
    p = Canned(lambda _: ran(0, 1, 2), emulator_credentials=False)

    async def main() -> None:
        error = await caught(p.create(SPEC))
        assert type(error) is Unauthorized
        assert error.code == "NoCredentialsError"
        assert "looked in" in error.message
        assert p.sent == []
        text = "[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = x\n"
        await asyncio.to_thread((tmp_path / "credentials").write_text, text)
        assert len(await p.create(SPEC)) == 3

    run(main())


@pytest.mark.usefixtures("no_credentials")
def test_a_missing_profile_is_unauthorized_but_offers_need_no_credentials() -> None:
    """PC-032: what needs no cloud call works without credentials."""
    p = Canned(lambda _: ran(0), emulator_credentials=False, profile="nope")

    async def main() -> None:
        error = await caught(everything(p))
        assert (type(error), error.code) == (Unauthorized, "ProfileNotFound")
        assert await p.offers(Need("H100", 8))

    run(main())


def test_offers_are_of_the_configured_places_and_blocks_only_if_bought() -> None:
    """Named zones with ids; a capacity block only where its reservation is configured."""
    every = frozenset(Market)
    zones = {"us-east-2a": "use2-az1", "us-east-2b": "use2-az2"}
    region = Region(zones=zones, capacity_blocks={"p5e.48xlarge": "cr-1"})
    p = Canned(lambda _: ran(0), regions={"us-east-2": region, "us-west-2": Region()})
    offers = run(p.offers(Need("H200", 8, every)))
    blocks = {(o.region, o.zone) for o in offers if o.market is Market.RESERVED}
    assert blocks == {("us-east-2", "us-east-2a"), ("us-east-2", "us-east-2b")}
    assert {o.region for o in offers} == {"us-east-2", "us-west-2"}


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that takes requests and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_no_answer_is_ambiguous_no_connection_is_not(silent_port: int) -> None:
    """A request that left may have worked; one that could not leave has not."""
    common: dict[str, Any] = {"regions": {"us-east-1": Region()}, "emulator_credentials": True}
    common["read_timeout_s"] = 0.2

    async def main() -> None:
        url = f"http://127.0.0.1:{silent_port}"
        silent = aws.Aws(aws.Settings(**common, endpoint_url=url), LoopClock())
        error = await caught(silent.create(SPEC))
        assert (type(error), error.code) == (Ambiguous, "ReadTimeoutError")
        assert type(await caught(everything(silent))) is Unavailable
        shut = aws.Aws(aws.Settings(**common, endpoint_url="http://127.0.0.1:1"), LoopClock())
        error = await caught(shut.create(SPEC))
        assert (type(error), error.code) == (Unavailable, "EndpointConnectionError")

    run(main())


def test_closing_lets_go_of_everything() -> None:
    """No thread of ours outlives the provider, and none is a daemon too few."""
    p, before = Canned(lambda _: ran(0, 1, 2)), threading.enumerate()

    async def main() -> None:
        await p.create(SPEC)
        mine = [t for t in threading.enumerate() if t not in before]
        assert mine
        assert all(t.daemon for t in mine)
        await p.aclose()
        for t in mine:
            t.join(10)
        assert not any(t.is_alive() for t in mine)
        assert (await caught(p.create(SPEC))).code == "PoolClosed"

    run(main())
