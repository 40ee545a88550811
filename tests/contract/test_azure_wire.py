"""The Azure skin against the real azure-mgmt-compute: what an adapter will meet, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import httpx
import pytest
from wire_azure import (
    GROUP,
    IMAGE,
    REGION,
    SUBNET,
    SUBSCRIPTION,
    TYPE,
    AzureWire,
    azure_wire,
    launch,
    offer,
)

from fleet.model import Market
from fleet.sim.vendor import BUCKETS
from fleet.sim.wire.arm.shapes import problem
from providers.arm.vm import Login, Region, vm_body

Make = Callable[..., AzureWire]
API = "api-version=2026-04-01"
BASE = f"/subscriptions/{SUBSCRIPTION}"
VMS = f"{BASE}/resourceGroups/{GROUP}/providers/Microsoft.Compute/virtualMachines"
TOKEN = {"authorization": "Bearer aaaaaaaa.bbbb.cccc"}


@pytest.fixture
def made() -> Iterator[Make]:
    with azure_wire(None, "azure") as make:
        yield make


@pytest.fixture
def h(made: Make) -> AzureWire:
    return made(1000)


def body(market: Market = Market.ON_DEMAND, zone: str = "1", **tags: str) -> dict[str, Any]:
    """A PUT's body."""
    spec = launch("t", offer=offer(zone, market), tags=tags)
    return vm_body(spec, 0, Region(subnet=SUBNET), Login("me", "ssh-rsa AAAA"))


Answers = Callable[..., Any]


def over_http(h: AzureWire, work: Callable[[Answers], Any]) -> Any:
    """What ``work`` makes of raw answers: it gets a function (method, path, json, headers)."""

    async def main() -> Any:
        async with httpx.AsyncClient(base_url=h.server.url, trust_env=False) as client:

            async def ask(method: str, path: str, json: Any = None, **headers: str) -> Any:
                url = path if "?" in path else f"{path}?{API}"
                said = {k.replace("_", "-"): v for k, v in (TOKEN | headers).items() if v}
                return await client.request(method, url, json=json, headers=said)

            return await work(ask)

    return h.run(main())


def said(answer: Any) -> tuple[int, str]:
    """Status and error code."""
    assert answer.headers["x-ms-request-id"]
    return answer.status_code, answer.json()["error"]["code"]


def test_launch_run_delete_with_the_sdks_own_poller(h: AzureWire) -> None:
    """The long-running operations of the SDK work to their end, here with its own polling."""
    from azure.core import MatchConditions
    from azure.core.exceptions import HttpResponseError, ResourceExistsError

    async def main() -> None:
        p: Any = h.provider
        connection = await p._link._connected()
        vms = connection._client.virtual_machines
        poller = await vms.begin_create_or_update(
            GROUP, "Vm-1", body(), match_condition=MatchConditions.IfMissing, polling_interval=0
        )
        assert poller.status() == "InProgress"
        await h.pass_time(300)
        vm = await poller.result()
        assert (vm.name, vm.provisioning_state, vm.zones) == ("Vm-1", "Succeeded", ["1"])
        assert vm.os_profile.custom_data is None
        again = await vms.begin_create_or_update(GROUP, "vm-1", body(), polling=False)
        assert (await again.result()).vm_id == vm.vm_id
        with pytest.raises(ResourceExistsError):
            await vms.begin_create_or_update(
                GROUP, "VM-1", body(), match_condition=MatchConditions.IfMissing
            )
        view = await vms.instance_view(GROUP, "vm-1")
        assert [s.code for s in view.statuses] == [
            "ProvisioningState/succeeded", "PowerState/running",
        ]  # fmt: skip
        h.inject("die_after_accept", 10)
        poller = await vms.begin_create_or_update(GROUP, "vm-2", body(), polling_interval=0)
        await h.pass_time(300)
        with pytest.raises(HttpResponseError) as caught:
            await poller.result()
        assert caught.value.status_code == 200
        assert caught.value.error is not None
        assert str(caught.value.error.code) in ("AllocationFailed", "InternalExecutionError")
        for name in ("vm-1", "vm-2", "vm-3"):
            gone = await vms.begin_delete(GROUP, name, force_deletion=True, polling_interval=0)
            await h.pass_time(300)
            await gone.result()

    # Retry-After beats the polling interval: the waits between polls are taken out
    real = asyncio.sleep

    async def main_at_once() -> None:
        asyncio.sleep = lambda s, *a: real(0.01)  # type: ignore[assignment]
        try:
            await main()
        finally:
            asyncio.sleep = real

    h.run(main_at_once())
    assert h.world.ever == 2
    assert not list(h.world.existing())


def test_an_unconditional_put_changes_nothing(h: AzureWire) -> None:
    """The same body is what it is, another one is refused; names ignore case."""
    loud = VMS.replace("resourceGroups/fleetd", "RESOURCEGROUPS/FLEETD")

    async def work(ask: Answers) -> None:
        first = await ask("PUT", f"{VMS}/vm", body())
        assert first.status_code == 201
        assert first.headers["retry-after"] == "10"
        assert first.json()["properties"]["provisioningState"] == "Creating"
        assert (await ask("PUT", f"{loud}/VM", body())).status_code == 200
        assert said(await ask("PUT", f"{VMS}/vm", body(a="b"))) == (409, "PropertyChangeNotAllowed")
        assert said(await ask("PUT", f"{VMS}/vm", body(), if_none_match="*")) == (
            412, "PreconditionFailed",
        )  # fmt: skip
        operation = await ask("GET", first.headers["azure-asyncoperation"])
        assert operation.json()["status"] == "InProgress"

    over_http(h, work)
    assert h.world.ever == 1


@pytest.mark.parametrize(
    ("path", "value", "answer"),
    [
        (("location",), "mars", (400, "LocationNotAvailableForResourceType")),
        (("zones",), ["7"], (400, "AvailabilityZoneNotSupported")),
        (("zones",), ["1", "2"], (400, "InvalidParameter")),
        (("properties", "colour"), "red", (400, "InvalidRequestContent")),
        (("properties", "hardwareProfile", "vmSize"), "Standard_Nope", (400, "InvalidParameter")),
        (("properties", "hardwareProfile", "vmSize"), 7, (400, "InvalidRequestContent")),
        (("properties", "hardwareProfile"), {}, (400, "InvalidParameter")),
        (("properties", "storageProfile", "imageReference"), {}, (400, "InvalidParameter")),
        (("properties", "osProfile", "computerName"), "x" * 65, (400, "InvalidParameter")),
        (("properties", "osProfile", "customData"), "!", (400, "InvalidParameter")),
        (("properties", "osProfile", "linuxConfiguration"), {}, (400, "InvalidParameter")),
        (("properties", "networkProfile"), {}, (400, "InvalidParameter")),
        (("properties", "priority"), "Spot", (400, "InvalidParameter")),
        (("tags",), {f"k{n}": "" for n in range(51)}, (400, "InvalidTagNameOrValue")),
        (("tags",), [], (400, "InvalidRequestContent")),
    ],
)
def test_bad_bodies_are_refused(
    h: AzureWire, path: tuple[str, ...], value: Any, answer: tuple[int, str]
) -> None:
    wrong = deepcopy(body())
    inner = wrong
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value

    async def work(ask: Answers) -> None:
        assert said(await ask("PUT", f"{VMS}/vm", wrong)) == answer

    over_http(h, work)
    assert h.world.ever == 0


def test_the_adapters_bodies_are_what_the_sdk_describes() -> None:
    """Every member and kind is checked against the SDK's own types."""
    assert problem(body(Market.SPOT, "")) == ""
    assert problem(None) == problem([]) == "the body must be an object"
    assert "location" in problem({})


@pytest.mark.parametrize(
    ("method", "path", "headers", "answer"),
    [
        ("GET", VMS, {"authorization": ""}, (401, "AuthenticationFailed")),
        ("GET", VMS, {"authorization": "Basic x"}, (401, "InvalidAuthenticationToken")),
        ("GET", f"{VMS}?x=1", {}, (400, "MissingApiVersionParameter")),
        ("GET", f"{VMS}?{API}&$expand=instanceView", {}, (400, "BadRequest")),
        ("GET", f"{VMS}?{API}&$skiptoken=!", {}, (400, "InvalidSkipToken")),
        ("GET", "/subscriptions/x/locations", {}, (400, "InvalidSubscriptionId")),
        ("GET", f"{BASE}/providers/Microsoft.Odd/things", {}, (404, "InvalidResourceType")),
        ("POST", VMS, {}, (405, "MethodNotAllowed")),
        ("GET", f"{VMS}/none", {}, (404, "ResourceNotFound")),
    ],
)
def test_bad_requests_are_refused(
    h: AzureWire, method: str, path: str, headers: dict[str, str], answer: tuple[int, str]
) -> None:
    async def work(ask: Answers) -> None:
        assert said(await ask(method, path, None, **headers)) == answer

    over_http(h, work)


def test_reads_of_places_quotas_groups_and_images(made: Make) -> None:
    """What a check of a configuration asks."""
    h = made(10, images=frozenset({IMAGE}), quota={(REGION, TYPE): 3})

    async def work(ask: Answers) -> None:
        async def get(path: str) -> Any:
            answer = await ask("GET", path)
            assert answer.status_code == 200, answer.text
            return answer.json()

        assert (await get(BASE))["state"] == "Enabled"
        (place,) = (await get(f"{BASE}/locations"))["value"]
        assert [m["logicalZone"] for m in place["availabilityZoneMappings"]] == ["1", "2"]
        assert (await get(f"{BASE}/resourceGroups/any"))["name"] == "any"
        compute = f"{BASE}/providers/Microsoft.Compute"
        skus = (await get(f"{compute}/skus"))["value"]
        assert [(s["name"], s["locations"]) for s in skus] == [(TYPE, [REGION])]
        assert (await get(IMAGE))["properties"]["replicationStatus"]
        assert said(await ask("GET", f"{IMAGE}1")) == (404, "ResourceNotFound")
        for n in range(3):
            assert (await ask("PUT", f"{VMS}/vm{n}", body())).status_code == 201
        refused = await ask("PUT", f"{VMS}/vm3", body())
        assert said(refused) == (409, "OperationNotAllowed")
        assert "quota" in refused.json()["error"]["message"]
        (usage,) = (await get(f"{compute}/locations/{REGION}/usages"))["value"]
        assert (usage["currentValue"], usage["limit"]) == (3, 3)

    over_http(h, work)


def test_throttling_names_its_bucket_and_the_wait(made: Make) -> None:
    """200 writes at once, then 10 a second (clouds.md 5)."""
    h = made(1000, buckets=BUCKETS["azure"])

    async def work(ask: Answers) -> None:
        answers = [await ask("PUT", f"{VMS}/vm{n}", body()) for n in range(260)]
        refused = [a for a in answers if a.status_code == 429]
        assert 200 <= len(answers) - len(refused) < 260
        error = refused[0].json()["error"]
        assert (error["code"], error["details"][0]["code"]) == (
            "OperationNotAllowed", "TooManyRequests",
        )  # fmt: skip
        assert refused[0].headers["retry-after"] == "7"
        assert refused[0].headers["x-ms-ratelimit-remaining-subscription-writes"] == "0"

    over_http(h, work)


def test_what_is_not_deleted_with_its_vm_stays(h: AzureWire) -> None:
    """The default of a disk is to be kept: only ``deleteOption`` makes a VM clean."""
    careless = body()
    del careless["properties"]["storageProfile"]["osDisk"]["deleteOption"]

    async def work(ask: Answers) -> None:
        await ask("PUT", f"{VMS}/careless", careless)
        await ask("PUT", f"{VMS}/careful", body())
        resources = f"{BASE}/resourceGroups/{GROUP}/resources"
        assert len((await ask("GET", resources)).json()["value"]) == 6
        for name in ("careless", "careful"):
            assert (await ask("DELETE", f"{VMS}/{name}")).status_code == 202
        await h.pass_time(600)
        assert (await ask("DELETE", f"{VMS}/careful")).status_code == 204
        (left,) = (await ask("GET", resources)).json()["value"]
        assert left["type"] == "Microsoft.Compute/disks"

    over_http(h, work)


def test_pages_hold_200_and_name_places_not_counts(h: AzureWire) -> None:
    """PC-190: what goes or comes between two pages hides nothing."""

    async def work(ask: Answers) -> None:
        for n in range(205):
            await ask("PUT", f"{VMS}/vm{n:03}", body())
        await h.pass_time(300)
        first = (await ask("GET", VMS)).json()
        assert len(first["value"]) == 200
        await ask("DELETE", f"{VMS}/vm000")
        await h.pass_time(300)
        rest = (await ask("GET", first["nextLink"])).json()
        assert [vm["name"] for vm in rest["value"]] == [f"vm{n:03}" for n in range(200, 205)]
        assert "nextLink" not in rest
        only = (await ask("GET", f"{BASE}/providers/Microsoft.Compute/virtualMachines?{API}"
                                 "&statusOnly=true")).json()  # fmt: skip
        assert set(only["value"][0]["properties"]) == {"vmId", "instanceView"}
        assert "tags" not in only["value"][0]

    over_http(h, work)


def test_a_machine_is_known_by_the_name_its_owner_gave(h: AzureWire) -> None:
    """So that its agent reports under the id that lists show; a name is free when its VM is."""

    async def work(ask: Answers) -> None:
        await ask("PUT", f"{VMS}/mine", body())
        assert [m.id for m in h.world.existing()] == ["mine"]
        other = VMS.replace(GROUP, "other")
        assert (await ask("PUT", f"{other}/mine", body())).status_code == 201
        await h.pass_time(60)
        assert len((await ask("GET", VMS)).json()["value"]) == 1
        await ask("DELETE", f"{VMS}/mine")
        await h.pass_time(600)
        assert said(await ask("GET", f"{VMS}/mine")) == (404, "ResourceNotFound")
        assert (await ask("PUT", f"{VMS}/mine", body(), if_none_match="*")).status_code == 201

    over_http(h, work)
    assert h.world.ever == 3
