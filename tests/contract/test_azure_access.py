"""Lists, credentials, connections and settings of the Azure adapter."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from wire_azure import (
    GROUP,
    REGION,
    SUBNET,
    SUBSCRIPTION,
    Asked,
    AzureWire,
    Canned,
    Said,
    azure_settings,
    azure_wire,
    everything,
    launch,
    offer,
    refusal,
)

from fleet.clock import LoopClock, SeededChance
from fleet.errors import Ambiguous, InvalidRequest, ProviderError, Unauthorized, Unavailable
from fleet.model import InstanceRef, Market, Need, Owner, Phase
from providers import azure, registry
from providers.arm.vm import Region
from providers.wrap import Wrapped

Make = Callable[..., AzureWire]


@pytest.fixture
def made() -> Iterator[Make]:
    with azure_wire(None, "azure") as make:
        yield make


@pytest.fixture
def h(made: Make) -> AzureWire:
    return made(1000)


def parts(h: AzureWire) -> list[str]:
    """Everything in the resource group, NICs and disks too."""
    return list(h.app.estate.resources(SUBSCRIPTION, GROUP))


def test_a_list_takes_two_calls_a_page_whatever_the_number_of_vms(h: AzureWire) -> None:
    """O(pages): bodies of the group, instance views of the subscription."""

    async def main() -> None:
        for n in range(5):
            await h.provider.create(h.spec(f"t{n}", 90))
        await h.settled("cell", lambda f: len(f) == 450)
        before = dict(h.app.requests)
        assert len(await h.listed()) == 450
        calls = {k: v - before.get(k, 0) for k, v in h.app.requests.items() if v != before.get(k)}
        assert calls == {"list_all": 3, "list_group": 3}

    h.run(main())


def test_power_states_can_be_left_out(made: Make) -> None:
    """Half the calls; a failed VM is then FAILED without the reason."""
    h = made(10, settings={"power_states": False})
    h.inject("die_after_accept", 10)

    async def main() -> None:
        await h.provider.create(h.spec("t"))
        (found,) = await h.settled("cell", lambda f: [i.phase for i in f] == [Phase.FAILED])
        assert found.code == "ProvisioningFailed"

    h.run(main())
    assert "list_all" not in h.app.requests


def test_a_lagging_list_hides_what_is_there(h: AzureWire) -> None:
    """PC-106: not shown is not gone; a delete by name works at once."""
    h.inject("list_lag", 60, value=40.0)

    async def main() -> None:
        (one,) = await h.provider.create(h.spec("t"))
        assert await h.listed() == []
        assert [r.ref for r in await h.provider.create(h.spec("t"))] == [one.ref]
        await h.pass_time(60)
        assert len(await h.listed()) == 1
        await h.provider.delete([one.ref])
        assert await h.settled("cell", lambda f: not f) == []

    h.run(main())
    assert h.world.ever == 1


def test_a_spot_vm_that_is_taken_back_is_gone_with_its_parts(h: AzureWire) -> None:
    async def main() -> None:
        await h.provider.create(h.spec("t", offer=offer("1", Market.SPOT)))
        await h.settled("cell", lambda f: [i.phase for i in f] == [Phase.RUNNING])
        cloud = h.world.clouds["azure"]
        for machine in h.world.existing():
            cloud.reclaim(machine)
        assert await h.settled("cell", lambda f: not f) == []

    h.run(main())
    assert parts(h) == []


def test_a_list_that_never_ends_is_an_error() -> None:
    """A next link that comes again; and one whose page fails is no short list."""

    def loop(asked: Asked) -> Said:
        link = f"http://{asked.headers['host']}{asked.path}?api-version=2026-04-01&$skiptoken=x"
        return 200, {"value": [], "nextLink": link}, {}

    def breaks(asked: Asked) -> Said:
        return refusal("ServerBusy", status=503) if "skiptoken" in asked.query else loop(asked)

    assert Canned(loop).error(everything).code == "EndlessListing"
    assert Canned(breaks).error(everything).code == "ServerBusy"
    assert type(Canned(lambda _: (200, '{"value":[', {})).error(everything)) is Unavailable


# -- credentials ---------------------------------------------------------------------------------


def test_refused_credentials_are_read_anew_by_the_next_call(h: AzureWire) -> None:
    """PC-031: a new client and a new credential; the old ones are closed when unused."""

    async def main() -> None:
        p: Any = h.provider
        await h.listed()
        before = p._link._connection
        await h.listed()
        assert p._link._connection is before
        h.inject("credentials", 60)
        errors = await asyncio.gather(
            h.listed(), p.create(h.spec("t")), p.delete([InstanceRef("a", REGION, "1", "x")]),
            return_exceptions=True,
        )  # fmt: skip
        assert {type(e) for e in errors} == {Unauthorized}
        assert {getattr(e, "code", "") for e in errors} == {"ExpiredAuthenticationToken"}
        assert before._retired
        assert before._users == 0
        assert before._client._client._pipeline._transport.session is None
        await h.pass_time(61)
        assert await h.listed() == []
        assert p._link._connection is not before

    h.run(main())


def test_missing_credentials_are_unauthorized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear words, nothing sent; offers need no credentials (PC-032)."""
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    canned = Canned(lambda _: (200, {"value": []}, {}), emulator_credentials=False)
    error = canned.error(everything)
    assert type(error) is Unauthorized
    assert "looked in" in error.message
    assert canned.asked == []
    assert canned.run(lambda p: p.offers(Need("H100", 8)))


@pytest.mark.parametrize("url", ["", "https://management.usgovcloudapi.net/"])
def test_real_endpoints_are_signed_for_themselves(url: str) -> None:
    """The token's audience is the Resource Manager that is spoken to; plain HTTP is refused."""
    from providers.arm.link import Target, _connect

    async def main() -> None:
        connection = _connect(Target(SUBSCRIPTION, url, False, 5.0, 30.0))
        policies = connection._client._client._pipeline._impl_policies
        names = [type(getattr(p, "_policy", p)).__name__ for p in policies]
        assert not [n for n in names if "Retry" in n or "Redirect" in n or "Registration" in n]
        (bearer,) = [p for p in policies if "Challenge" in type(p).__name__]
        assert bearer._scopes == (f"{url.rstrip('/') or 'https://management.azure.com'}/.default",)
        await connection.retire()

    asyncio.run(main())


def test_redirects_retries_and_registrations_do_not_happen() -> None:
    """The SDK would follow, repeat three times, and switch a provider on and poll for it."""
    answers: tuple[Said, ...] = (
        (307, {}, {"location": "http://127.0.0.1:9/"}),
        refusal("ServerBusy", status=503, headers={"retry-after": "1"}),
        refusal("MissingSubscriptionRegistration", "register 'Microsoft.Compute'"),
    )
    for said in answers:
        canned = Canned(lambda _, said=said: said)
        canned.error(lambda p: p.create(launch("t")))
        assert len(canned.asked) == 1


# -- connections ---------------------------------------------------------------------------------


def test_no_answer_is_ambiguous_no_connection_is_not() -> None:
    """A request that left may have worked; one that could not leave has not."""

    async def errors(url: str) -> list[ProviderError]:
        p = azure.Azure(azure_settings(url, read_timeout_s=0.2), LoopClock())
        found = await asyncio.gather(p.create(launch("t")), everything(p), return_exceptions=True)
        await p.aclose()
        return [e for e in found if isinstance(e, ProviderError)]

    with socket.create_server(("127.0.0.1", 0)) as silent:
        create, listing = asyncio.run(errors(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        assert (type(create), create.code) == (Ambiguous, "ServiceResponseTimeoutError")
        assert type(listing) is Unavailable
    create, listing = asyncio.run(errors("http://127.0.0.1:1"))
    assert (type(create), create.code) == (Unavailable, "ServiceRequestError")
    assert type(listing) is Unavailable


def test_no_more_calls_at_once_than_are_allowed() -> None:
    """However large the batch."""
    now, most = 0, 0

    class Slow(Canned):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            await super().__call__(scope, receive, send)
            now -= 1

    def accepted(asked: Asked) -> Said:
        return 201, {"name": asked.name}, {}

    assert len(Slow(accepted, max_calls=6).run(lambda p: p.create(launch("t", 50)))) == 50
    assert most == 6


def test_closing_lets_go_of_everything(h: AzureWire) -> None:
    async def main() -> None:
        p: Any = h.provider
        await h.listed()
        connection = p._link._connection
        await p.aclose()
        assert connection._client._client._pipeline._transport.session is None
        with pytest.raises(Unavailable):
            await h.listed()
        await p.aclose()

    h.run(main())


def test_the_sdk_is_imported_when_it_is_needed_and_off_the_loop() -> None:
    """0.1 s without it, a second more with it."""
    code = """
import asyncio, sys, threading
from providers import azure
from fleet.clock import LoopClock
assert not any(m.startswith("azure.") for m in sys.modules), "on import"
from providers.arm import link
from providers.arm.vm import Region
real, where = link._connect, []
link._connect = lambda target: where.append(threading.current_thread()) or real(target)
async def main():
    s = azure.Settings(subscription="0" * 8 + "-0000" * 3 + "-" + "0" * 12, resource_group="g",
        regions={"eastus": Region(
            subnet="/subscriptions/s/resourceGroups/r/providers/n/subnets/x")},
        ssh_public_key="ssh-x", endpoint_url="http://127.0.0.1:1", emulator_credentials=True)
    p = azure.Azure(s, LoopClock())
    assert not any(m.startswith("azure.") for m in sys.modules), "on opening"
    try:
        await p.delete([azure.InstanceRef("a", "eastus", "1", "x")])
    except azure.ProviderError:
        pass
    assert "azure.mgmt.compute.aio" in sys.modules
    assert where and where[0] is not threading.main_thread()
    await p.aclose()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "what"),
    [
        ({"subscription": "mine"}, "subscription"),
        ({"resource_group": "a/b"}, "resource_group"),
        ({"regions": {}}, "regions"),
        ({"ssh_public_key": ""}, "ssh_public_key"),
        ({"ssh_public_key_file": "x"}, "ssh_public_key"),
        ({"endpoint_url": "http://example.com"}, "https"),
        ({"endpoint_url": "https://example.com"}, "this machine"),
        ({"endpoint_url": ""}, "this machine"),
        ({"confirm_s": 31.0}, "confirm_s"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_settings_that_cannot_work_are_refused(over: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        azure_settings("http://127.0.0.1:1", **over)


def test_the_key_file_is_read_when_it_is_needed(tmp_path: Any) -> None:
    """A file that is missing, or holds no public key, is named."""
    file = tmp_path / "key.pub"

    def create(p: azure.Azure) -> Any:
        return p.create(launch("t"))

    def canned() -> Canned:
        over = {"ssh_public_key": "", "ssh_public_key_file": str(file)}
        return Canned(lambda a: (201, {"name": a.name}, {}), **over)

    error = canned().error(create)
    assert (type(error), str(file) in error.message) == (InvalidRequest, True)
    file.write_text("-----BEGIN PRIVATE KEY-----", "ascii")
    assert type(canned().error(create)) is InvalidRequest
    file.write_text("ssh-ed25519 AAAA me\n", "ascii")
    said = canned()
    said.run(create)
    linux = said.asked[0].body["properties"]["osProfile"]["linuxConfiguration"]
    assert linux["ssh"]["publicKeys"][0]["keyData"] == "ssh-ed25519 AAAA me"


def test_offers_are_of_the_configured_places_and_reserved_only_if_bought() -> None:
    size = offer().instance_type
    regions = {
        "eastus": Region(subnet=SUBNET, zones=["1", "3"], capacity_reservations={size: "/g"}),
        "westus3": Region(subnet=SUBNET),
    }
    canned = Canned(lambda _: (200, {}, {}), regions=regions)
    found = canned.run(lambda p: p.offers(Need("H100", 8, frozenset(Market))))
    assert {(o.region, o.zone) for o in found if o.region == "eastus"} == {
        ("eastus", "1"), ("eastus", "3"),
    }  # fmt: skip
    assert {o.zone for o in found if o.region == "westus3"} <= {""}
    assert all(o.provider == "azure" and o.gpu == "H100" and o.gpus == 8 for o in found)


def test_the_registry_opens_it_wrapped_and_it_works(h: AzureWire) -> None:
    """From plain settings to a list, through pacing, retries and records."""
    raw = azure_settings(h.server.url).model_dump()

    async def main() -> None:
        p = registry.open_provider(registry.parse(raw), clock=LoopClock(), chance=SeededChance(1))
        assert isinstance(p, Wrapped)
        made = await p.create(h.spec("t", 3))
        assert [r.error for r in made] == [None] * 3
        await h.pass_time(10)
        assert len([i async for i in p.list(Owner("cell"))]) == 3
        await p.delete([r.ref for r in made if r.ref])
        await p.aclose()

    h.run(main())
    assert h.count("t") in (0, 3)
