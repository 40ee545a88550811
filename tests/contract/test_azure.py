"""What the Azure adapter asks for, and what is left behind when something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_azure import (
    GROUP,
    IMAGE,
    REGION,
    SUBNET,
    SUBSCRIPTION,
    Asked,
    AzureWire,
    Canned,
    JumpClock,
    Said,
    azure_settings,
    azure_wire,
    launch,
    offer,
    refusal,
)

from fleet.clock import LoopClock
from fleet.errors import (
    Ambiguous,
    ImageNotFound,
    InsufficientCapacity,
    InvalidRequest,
    Throttled,
)
from fleet.model import Market, Outcome, Phase
from fleet.sim.capacity import BucketSpec
from providers import azure
from providers.arm.vm import Region, image_id_of, image_reference, vm_name
from providers.base import CreateResult

Make = Callable[..., AzureWire]


@pytest.fixture
def made() -> Iterator[Make]:
    with azure_wire(None, "azure") as make:
        yield make


@pytest.fixture
def h(made: Make) -> AzureWire:
    return made(1000)


def accepted(asked: Asked) -> Said:
    """Every PUT is accepted."""
    body = {"name": asked.name, "properties": {"provisioningState": "Creating"}}
    return 201, body, {"Retry-After": "10"}


def ids(results: Any) -> list[str]:
    return [r.ref.instance_id for r in results if r.ref]


def parts(h: AzureWire) -> list[str]:
    """Everything in the resource group, NICs and disks too."""
    return list(h.app.estate.resources(SUBSCRIPTION, GROUP))


# -- what is asked for ---------------------------------------------------------------------------


def test_a_vm_is_one_put_with_its_nic_and_disk() -> None:
    """Name, condition, tags, user data once in base64, and parts that die with the VM."""
    canned = Canned(accepted)
    spec = launch("tok", 2, user_data="#cloud-config\n# ü\n")
    assert ids(canned.run(lambda p: p.create(spec))) == [vm_name("tok", 0), vm_name("tok", 1)]
    first, second = sorted(canned.asked, key=lambda a: a.name)
    assert (first.method, first.headers["if-none-match"]) == ("PUT", "*")
    assert first.path.endswith(f"/resourceGroups/{GROUP}/providers/Microsoft.Compute/"
                               f"virtualMachines/{vm_name('tok', 0)}")  # fmt: skip
    assert first.headers["authorization"].startswith("Bearer ")
    body = first.body
    assert (body["location"], body["zones"]) == (REGION, ["1"])
    assert body["tags"] == {
        "fleetd-cell": "cell", "fleetd-pool": "train", "fleetd-token": "tok",
        "fleetd-image": "base@1.0.0",
    }  # fmt: skip
    properties = body["properties"]
    assert properties["osProfile"]["customData"] == "I2Nsb3VkLWNvbmZpZwojIMO8Cg=="
    assert properties["osProfile"]["computerName"] == first.name
    assert properties["storageProfile"]["imageReference"] == {"id": IMAGE}
    assert properties["storageProfile"]["osDisk"]["deleteOption"] == "Delete"
    (nic,) = properties["networkProfile"]["networkInterfaceConfigurations"]
    assert (nic["name"], nic["properties"]["deleteOption"]) == (f"{first.name}-nic", "Delete")
    assert nic["properties"]["ipConfigurations"][0]["properties"]["subnet"] == {"id": SUBNET}
    assert "priority" not in properties
    assert second.body["tags"] == body["tags"]


def test_markets_and_options() -> None:
    """Spot at most at the on-demand price and deleted on eviction; a reservation by its group."""
    region = Region(
        subnet=SUBNET, security_group="/nsg", identity="/id", os_disk_gb=256,
        capacity_reservations={offer().instance_type: "/group"},
    )  # fmt: skip
    canned = Canned(accepted, regions={REGION: region})

    async def work(p: azure.Azure) -> None:
        await p.create(launch("a", offer=offer("", Market.SPOT)))
        await p.create(launch("b", offer=offer("", Market.RESERVED)))

    canned.run(work)
    spot, reserved = (a.body for a in canned.asked)
    said = spot["properties"]
    assert (said["priority"], said["evictionPolicy"]) == ("Spot", "Delete")
    assert said["billingProfile"] == {"maxPrice": -1}
    assert "zones" not in spot
    assert spot["identity"]["userAssignedIdentities"] == {"/id": {}}
    nic = said["networkProfile"]["networkInterfaceConfigurations"][0]
    assert nic["properties"]["networkSecurityGroup"] == {"id": "/nsg"}
    group = reserved["properties"]["capacityReservation"]["capacityReservationGroup"]
    assert group == {"id": "/group"}
    error = Canned(accepted).error(
        lambda p: p.create(launch("c", offer=offer("1", Market.RESERVED)))
    )
    assert type(error) is InvalidRequest


@pytest.mark.parametrize(
    "over",
    [
        {"image_id": "ami-1"},
        {"user_data": "x" * 65_536},
        {"tags": {f"k{n}": "v" for n in range(50)}},
        {"tags": {"a/b": "v"}},
        {"tags": {"k": "v" * 257}},
        {"offer": offer().__class__("azure", "mars", "1", "x")},
    ],
)
def test_what_azure_would_refuse_or_cut_is_not_sent(over: dict[str, Any]) -> None:
    canned = Canned(accepted)
    assert type(canned.error(lambda p: p.create(launch("t", **over)))) is InvalidRequest
    assert canned.asked == []


@pytest.mark.parametrize(
    "image",
    [IMAGE, "/communityGalleries/g/images/i/versions/1.0.0", "/SharedGalleries/g/x", "a:b:c:1"],
)
def test_images_come_back_as_they_were_named(image: str) -> None:
    assert image_id_of(image_reference(image)) == image


@given(st.text(min_size=1, max_size=64), st.text(min_size=1, max_size=64), st.integers(0, 9999))
def test_names_fit_and_are_one_per_token_and_index(one: str, two: str, n: int) -> None:
    """A Linux computer name; ARM ignores case, so tokens that differ in case must not meet."""
    name = vm_name(one, n)
    assert len(name) <= 64
    assert name == name.lower() == vm_name(one, n)
    assert (vm_name(two, n) == name) == (one == two)
    assert vm_name(one, n + 1) != name


# -- create --------------------------------------------------------------------------------------


def test_a_name_that_is_taken_is_adopted_only_with_our_token() -> None:
    """412: this token made it, somebody else did, or it is gone meanwhile."""

    def run(get: Said) -> Any:
        said = refusal("PreconditionFailed", status=412)
        return Canned(lambda a: said if a.method == "PUT" else get)

    ours: Said = (200, {"name": "x", "tags": {"fleetd-token": "t"}}, {})
    assert ids(run(ours).run(lambda p: p.create(launch("t")))) == [vm_name("t", 0)]
    other: Said = (200, {"name": "x", "tags": {"fleetd-token": "u"}}, {})
    for get, kind in (
        (other, InvalidRequest),
        ((200, {"name": "x"}, {}), InvalidRequest),
        (refusal("ResourceNotFound", status=404), Ambiguous),
    ):
        assert type(run(get).error(lambda p: p.create(launch("t")))) is kind


def test_a_refusal_ends_the_sending(made: Make) -> None:
    """A dry zone is asked by as many calls as are under way, not by the whole batch."""
    h = made(0, settings={"max_calls": 4})

    async def main() -> None:
        with pytest.raises(InsufficientCapacity) as caught:
            await h.provider.create(h.spec("t", 100))
        assert caught.value.code == "ZonalAllocationFailed"
        with pytest.raises(InsufficientCapacity) as caught:
            await h.provider.create(h.spec("u", 100, offer=offer("1", Market.SPOT)))
        assert caught.value.code == "SkuNotAvailable"

    h.run(main())
    assert h.app.requests["put_vm"] <= 8


def test_a_batch_that_is_throttled_in_the_middle_goes_on_after_the_wait(made: Make) -> None:
    """PC-192: what is Busy beside accepted VMs is sent once more, after Azure's own wait."""
    h = made(1000, buckets={"launch": BucketSpec(5, 1)})

    async def main() -> None:
        clock = JumpClock(h)
        p = azure.Azure(azure_settings(h.server.url), clock)
        assert len(ids(await p.create(h.spec("t", 8)))) == 8
        assert clock.slept == [7.0]
        await h.pass_time(60)
        results = await p.create(h.spec("u", 20))
        errors = [r.error for r in results if r.error]
        assert {type(e) for e in errors} == {Throttled}
        assert len(ids(results)) + len(errors) == 20
        await p.aclose()

    h.run(main())
    assert h.count("t") == 8


def test_fast_failures_are_refusals_and_leave_nothing(made: Make) -> None:
    """Accepted, failed within the look of the same call: refused, and deleted with its parts."""
    h = made(1000)

    async def main() -> None:
        p = azure.Azure(azure_settings(h.server.url, confirm_s=30.0), JumpClock(h))
        h.inject("die_after_accept", 1, rate=0.5)
        results: list[CreateResult] = []
        for n in range(4):
            results += await p.create(h.spec(f"t{n}", 5))
        await p.aclose()
        errors = [r.error for r in results if r.error]
        assert errors
        assert {type(e) for e in errors} == {InsufficientCapacity}
        assert {e.code for e in errors} == {"AllocationFailed"}
        found = await h.settled("cell", lambda f: len(f) == len(ids(results)))
        assert {i.ref.instance_id for i in found} == set(ids(results))

    h.run(main())
    # deaths of another kind are told by lists, not by the call
    assert len(parts(h)) == 3 * len(h.run(h.listed()))


def test_creates_that_wait_at_the_same_time_share_one_look(h: AzureWire) -> None:
    """Many small batches cost no list each."""

    async def main() -> None:
        p = azure.Azure(azure_settings(h.server.url, confirm_s=0.3), LoopClock())
        made = await asyncio.gather(*(p.create(h.spec(f"t{n}", 2)) for n in range(20)))
        assert sum(len(ids(r)) for r in made) == 40
        await p.aclose()

    h.run(main())
    assert h.app.requests["list_all"] < 10


@pytest.mark.parametrize("kind", ["create_unheard", "create_late"])
def test_a_restart_in_the_middle_makes_no_second_batch(h: AzureWire, kind: str) -> None:
    """The answer was lost and so was the process: the next one's repeat finds what is there."""
    h.inject(kind, 10, value=20.0)

    async def main() -> None:
        spec = h.spec("t", 5)
        with pytest.raises(Ambiguous):
            await h.provider.create(spec)
        await h.provider.aclose()
        h.provider = h.adapter()
        await h.pass_time(21)
        assert len(await h.settled("cell", lambda f: len(f) == 5)) == 5
        assert len(ids(await h.provider.create(spec))) == 5

    h.run(main())
    assert h.world.ever_by_token["t"] == 5


def test_a_cancelled_create_is_found_by_the_next_process(made: Make) -> None:
    """A caller that dies between effect and answer."""
    from fleet.sim.spec import Lognormal

    h = made(1000, latency_s=Lognormal(0.2, 0.0))

    async def main() -> None:
        task = asyncio.ensure_future(h.provider.create(h.spec("t", 3)))
        while h.count("t") < 3:  # noqa: ASYNC110 — the world sets no event
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        h.provider = h.adapter()
        assert len(await h.settled("cell", lambda f: len(f) == 3)) == 3
        assert len(ids(await h.provider.create(h.spec("t", 3)))) == 3

    h.run(main())
    assert h.world.ever_by_token["t"] == 3


def test_a_failed_vm_and_its_parts_are_cleaned_up_after_a_crash(h: AzureWire) -> None:
    """It stays until it is deleted, by whichever process."""
    h.inject("die_after_accept", 10)

    async def main() -> None:
        await h.provider.create(h.spec("t", 3))
        await h.provider.aclose()
        h.provider = h.adapter()
        found = await h.settled("cell", lambda f: [i.phase for i in f] == [Phase.FAILED] * 3)
        assert {i.code for i in found} <= {"AllocationFailed", "InternalExecutionError"}
        assert {(i.code, i.died) for i in found} <= {
            ("AllocationFailed", Outcome.INSUFFICIENT_CAPACITY), ("InternalExecutionError", None),
        }  # fmt: skip
        assert len(parts(h)) == 9
        await h.pass_time(86_400)
        assert len(await h.listed()) == 3
        await h.provider.delete([i.ref for i in found])
        assert await h.settled("cell", lambda f: not f) == []

    h.run(main())
    assert parts(h) == []
    assert h.count("t") == 0


def test_a_system_that_never_called_back_is_shown_as_failed(h: AzureWire) -> None:
    """``OSProvisioningTimedOut``: it runs and is billed until it is deleted."""
    h.inject("never_boot", 600)

    async def main() -> None:
        await h.provider.create(h.spec("t"))
        (found,) = await h.settled("cell", lambda f: [i.phase for i in f] == [Phase.RUNNING])
        assert found.code == ""
        await h.pass_time(3000)
        (found,) = await h.listed()
        assert (found.phase, found.code) == (Phase.FAILED, "OSProvisioningTimedOut")
        assert found.died is Outcome.BOOT_TIMEOUT
        await h.provider.delete([found.ref])
        assert await h.settled("cell", lambda f: not f) == []

    h.run(main())


def test_a_missing_image_and_a_size_that_is_not_sold(made: Make) -> None:
    h = made(10, images=frozenset({IMAGE}))

    async def main() -> None:
        for over, kind in (
            ({"image_id": IMAGE + "1"}, ImageNotFound),
            ({"offer": offer("3")}, InvalidRequest),
            ({"offer": offer().__class__("azure", REGION, "1", "Standard_Nope")}, InvalidRequest),
        ):
            with pytest.raises(kind):
                await h.provider.create(h.spec("t", **over))
        assert len(ids(await h.provider.create(h.spec("t")))) == 1

    h.run(main())
