"""The Oracle adapter's answers that never came, its credentials, and its SDK. PC-001, PC-031."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from canned_oci import IDENT, Canned, create, delete, described, everything
from wire_oci import TENANCY, launch

from fleet.errors import Ambiguous, InsufficientCapacity, Unauthorized, Unavailable
from providers import oci
from providers.oracle.codes import LOCAL, translate

pytest.importorskip("oci")


def test_a_lost_answer_is_ambiguous_for_create_and_busy_for_the_rest() -> None:
    """A connection that is cut, and one that says nothing."""
    for status in (0, -1):
        p = Canned(lambda _, s=status: (s, {}), read_timeout_s=0.2)
        assert type(p.error(create)) is Ambiguous
        assert type(p.error(delete)) is Unavailable
        assert type(p.error(everything)) is Unavailable


def test_nobody_listening_is_busy_for_create_too() -> None:
    """Nothing was sent; the domain is known."""
    regions = oci.Region(availability_domains=["Uocm:PHX-AD-1"], subnet="ocid1.subnet.oc1.phx.x")
    p = Canned(lambda _: (200, {}), endpoint="http://127.0.0.1:9",
               regions={"us-phoenix-1": regions})  # fmt: skip
    assert type(p.error(create)) is Unavailable


@pytest.mark.parametrize("page", ["<html>", "", None, {}, [], {"items": []}, [None], ["i-1"]])
def test_an_answer_of_another_form(page: Any) -> None:
    """A proxy's page: the launch may have happened, and no list of it looks like a short one."""
    assert type(Canned(lambda _: (200, page)).error(create)) is Ambiguous
    if page != []:
        assert type(Canned(lambda _: (200, page)).error(everything)) is Unavailable


def test_ten_stock_outs_open_no_circuit() -> None:
    """The SDK's breaker would cut every call of the client for half a minute (clouds.md 2.4)."""

    async def work(provider: oci.Oci) -> None:
        for n in range(12):
            with pytest.raises(InsufficientCapacity):
                await provider.create(launch(f"tok-{n}"))

    p = Canned(lambda _: (500, {"code": "InternalError", "message": "Out of host capacity."}))
    p.run(work)
    assert len([a for a in p.sent if a.method == "POST"]) == 12


@pytest.mark.parametrize(
    "text",
    [
        None,
        "[OTHER]\nuser=x\n",
        "[DEFAULT]\nuser=ocid1.user.oc1..a\n",
        (
            f"[DEFAULT]\nuser=ocid1.user.oc1..a\nfingerprint={':'.join(['ab'] * 16)}\n"
            f"tenancy={TENANCY}\nregion=us-phoenix-1\nkey_file=/nowhere/key.pem\n"
        ),
    ],
)
def test_credentials_that_are_not_there(tmp_path: Path, text: str | None) -> None:
    """PC-031: no file, no such profile, half a profile, no key: the provider is held."""
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    p = Canned(lambda _: (200, []), emulator_credentials=False, config_file=str(file))
    error = p.error(everything)
    assert type(error) is Unauthorized, error
    assert "looked in" in error.message
    assert p.sent == []


def test_a_profile_with_its_key(tmp_path: Path) -> None:
    """The usual way; the request is signed with it."""
    from providers.oracle.sdk import _throw_away_key

    key = tmp_path / "key.pem"
    key.write_text(_throw_away_key())
    file = tmp_path / "config"
    file.write_text(
        f"[FLEET]\nuser=ocid1.user.oc1..a\nfingerprint={':'.join(['ab'] * 16)}\n"
        f"tenancy={TENANCY}\nregion=us-ashburn-1\nkey_file={key}\n"
    )
    p = Canned(lambda _: (200, []), emulator_credentials=False, config_file=str(file),
               profile="FLEET")  # fmt: skip
    assert p.run(everything) == []
    assert f'keyId="{TENANCY}/ocid1.user.oc1..a/ab:ab' in p.sent[0].headers["authorization"]


def test_credentials_are_read_anew_after_a_refusal() -> None:
    """PC-031: works by itself once they are good again."""
    answers = iter([(401, {"code": "NotAuthenticated", "message": "expired"}), (200, [])])

    async def work(provider: oci.Oci) -> None:
        with pytest.raises(Unauthorized, match="expired"):
            await everything(provider)
        assert provider._account._clients == {}
        assert await everything(provider) == []

    Canned(lambda _: next(answers)).run(work)


def test_clients_are_made_as_they_should_be() -> None:
    """No retries, no breaker, two time-outs, as many connections as threads, no proxy."""

    async def work(provider: oci.Oci) -> None:
        await everything(provider)
        import oci as sdk

        c = provider._account._clients["us-phoenix-1"]
        for client in (c.compute, c.work, c.identity):
            assert isinstance(client.retry_strategy, sdk.retry.NoneRetryStrategy)
            base = client.base_client
            assert isinstance(
                base.circuit_breaker_strategy, sdk.circuit_breaker.NoCircuitBreakerStrategy
            )
            assert base.timeout == (5.0, 30.0)
            assert base.session.get_adapter("https://x")._pool_maxsize == 18
            assert base.session.get_adapter("http://x")._pool_maxsize == 18
            assert base.session.trust_env is False

    Canned(lambda _: (200, [])).run(work)


def test_errors_of_the_sdk_itself() -> None:
    """Every class of the table, by name; anything else may have had an effect."""
    for name, kind in LOCAL.items():
        error = translate(type(name, (Exception,), {})("the words"), now=0.0, creates=True)
        assert (type(error), error.code, error.message) == (kind, name, "the words")
    assert type(translate(ValueError("?"), now=0.0, creates=True)) is Ambiguous
    assert type(translate(ValueError("?"), now=0.0)) is Unavailable


def test_a_cancelled_create_goes_on_in_its_thread() -> None:
    """Cancelled is not refused: the request was sent."""

    async def work(provider: oci.Oci) -> Any:
        await everything(provider)
        task = asyncio.ensure_future(create(provider))
        await asyncio.sleep(0.15)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def script(asked: Any) -> Any:
        return (200, []) if asked.method == "GET" else (-1, described(IDENT))

    p = Canned(script)
    p.run(work)
    assert [a.what for a in p.sent if a.method == "POST"] == ["instances"]


def test_the_sdk_is_not_imported_before_it_is_needed() -> None:
    """Opening a provider makes no call and imports no SDK: fleetctl and check-config stay quick."""
    program = (
        "import asyncio, sys\n"
        "from fleet.clock import LoopClock, SeededChance\n"
        "from providers import registry\n"
        "raw = dict(kind='oci', tenancy='ocid1.tenancy.oc1..x', compartment='ocid1.compartment"
        ".oc1..x', regions={'us-phoenix-1': dict(availability_domains=['AD-1'],"
        " subnet='ocid1.subnet.oc1.phx.x')})\n"
        "async def main():\n"
        "    p = registry.open_provider(registry.parse(raw), clock=LoopClock(),"
        " chance=SeededChance(1))\n"
        "    await p.aclose()\n"
        "asyncio.run(main())\n"
        "print('oci' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          cwd=Path(__file__).parents[2], check=True)  # fmt: skip
    assert done.stdout.strip() == "False"
