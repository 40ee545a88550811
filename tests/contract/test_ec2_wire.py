"""The EC2 skin against the real boto3: what an adapter will meet, over loopback HTTP.

Covers the hard paths of clouds.md sections 4 and 5 that no third-party emulator has: zonal
idempotency, partial launches, launches that die, lag, throttling, answers lost after the effect.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet.clock import SeededChance
from fleet.model import Market, Phase
from fleet.sim.capacity import Lognormal, Steady
from fleet.sim.faults import FaultPlan, Injection, Kind
from fleet.sim.spec import OfferSpec, WorldSpec, cloud_spec
from fleet.sim.wire.ec2 import Ec2App
from fleet.sim.wire.serve import Dispatcher, WireServer
from fleet.sim.world import World

boto3 = pytest.importorskip("boto3")
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError, ConnectionClosedError  # noqa: E402

TYPE, A, B = "p5.48xlarge", "us-east-1a", "us-east-1b"
NEVER = Lognormal(0.0)
SESSION = boto3.Session(aws_access_key_id="emulator", aws_secret_access_key="emulator")


def _spec() -> WorldSpec:
    offers = [
        OfferSpec("us-east-1", zone, TYPE, market=market, capacity=Steady(level))
        for zone, level in ((A, 3000), (B, 3))
        for market in (Market.ON_DEMAND, Market.SPOT)
    ]
    offers.append(OfferSpec("us-west-2", "us-west-2a", "g6.xlarge", "L4", 1))
    return WorldSpec(
        (
            cloud_spec(
                "aws",
                tuple(offers),
                images=frozenset({"ami-0001"}),
                latency_s=NEVER,
                pending_s=Lognormal(20.0, 0.0),
                terminate_s=Lognormal(30.0, 0.0),
                lag_s=0.0,
            ),
        )
    )


class Bench:
    """A world on a hand-turned clock behind the skin, in a loop of its own thread."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._clients: list[Any] = []
        self.do(self._open)

    def _open(self) -> None:
        self.world = World(lambda: self.now, SeededChance(7), _spec(), FaultPlan())
        self.app = Ec2App(self.world, SeededChance(8))
        dispatcher = Dispatcher()
        dispatcher.add("/", self.app)
        self.server = WireServer(dispatcher)
        self._started = self._loop.create_task(self.server.start())

    def do(self, act: Callable[[], Any]) -> Any:
        """Run ``act`` in the world's own loop."""

        async def call() -> Any:
            return act()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def wait(self, make: Callable[[], Any]) -> Any:
        """Await something in the world's own loop."""

        async def call() -> Any:
            return await make()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def turn(self, seconds: float) -> None:
        """Let world time pass."""

        def act() -> None:
            self.now += seconds
            self.world.advance()

        self.do(act)

    def inject(self, kind: Kind, duration_s: float = 600.0, **fields: Any) -> None:
        """Open a fault window now."""
        self.do(lambda: self.world.inject(Injection(kind, duration_s=duration_s, **fields)))

    def client(self, region: str = "us-east-1") -> Any:
        """A boto3 client as the adapter makes it."""
        config = Config(
            retries={"mode": "standard", "total_max_attempts": 1}, proxies={}, read_timeout=10
        )
        client = SESSION.client(
            "ec2", region_name=region, endpoint_url=self.server.url, config=config
        )
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.wait(self.server.aclose)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.wait(lambda: made._started)
    yield made
    made.close()


@pytest.fixture
def ec2(bench: Bench) -> Any:
    return bench.client()


def run(ec2: Any, count: int = 1, zone: str = A, token: str = "t-1", **over: Any) -> Any:
    request: dict[str, Any] = {
        "ImageId": "ami-0001",
        "InstanceType": TYPE,
        "MinCount": 1,
        "MaxCount": count,
        "ClientToken": token,
        "UserData": "#cloud-config",
        "Placement": {"AvailabilityZone": zone},
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": "fleetd-cell", "Value": "c1"}]}
        ],
    }
    return ec2.run_instances(**{k: v for k, v in (request | over).items() if v is not None})


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    error = caught.value.response
    assert error["ResponseMetadata"]["RequestId"]
    return str(error["Error"]["Code"])


def listed(ec2: Any, **over: Any) -> list[Any]:
    answer = ec2.describe_instances(**over)
    return [i for r in answer["Reservations"] for i in r["Instances"]]


def test_launch_run_terminate(bench: Bench, ec2: Any) -> None:
    made = run(ec2, 3)["Instances"]
    assert [i["State"]["Name"] for i in made] == ["pending"] * 3
    assert [i["AmiLaunchIndex"] for i in made] == [0, 1, 2]
    bench.turn(21)
    (one, *_) = found = listed(ec2, Filters=[{"Name": "tag:fleetd-cell", "Values": ["c1"]}])
    assert len(found) == 3
    assert one["State"] == {"Code": 16, "Name": "running"}
    assert one["Placement"]["AvailabilityZone"] == A
    assert one["Tags"] == [{"Key": "fleetd-cell", "Value": "c1"}]
    assert one["LaunchTime"].timestamp() == 1_800_000_000.0
    assert one["ClientToken"] == "t-1"
    ids = [i["InstanceId"] for i in made]
    ended = ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"]
    assert {e["CurrentState"]["Name"] for e in ended} == {"shutting-down"}
    assert {e["PreviousState"]["Name"] for e in ended} == {"running"}
    bench.turn(31)
    states = {(i["State"]["Name"], i["StateReason"]["Code"]) for i in listed(ec2, InstanceIds=ids)}
    assert states == {("terminated", "Client.UserInitiatedShutdown")}
    bench.turn(3700)
    assert listed(ec2) == []


def test_paging_reaches_every_one_of_2500(bench: Bench, ec2: Any) -> None:
    """PC-188, PC-190: more instances than any page holds."""
    for n in range(5):
        run(ec2, 500, token=f"t-{n}")
        bench.turn(300)
    pages = list(
        ec2.get_paginator("describe_instances").paginate(
            Filters=[{"Name": "tag:fleetd-cell", "Values": ["c1"]}],
            PaginationConfig={"PageSize": 1000},
        )
    )
    ids = [i["InstanceId"] for p in pages for r in p["Reservations"] for i in r["Instances"]]
    assert len(pages) == 3
    assert len(ids) == len(set(ids)) == 2500


def test_page_size_bounds_and_ids(ec2: Any) -> None:
    made = run(ec2, 7)["Instances"]
    first = ec2.describe_instances(MaxResults=5)
    rest = ec2.describe_instances(MaxResults=5, NextToken=first["NextToken"])
    assert "NextToken" not in rest
    assert sum(len(r["Instances"]) for p in (first, rest) for r in p["Reservations"]) == 7
    ids = [made[0]["InstanceId"]]
    assert refused(lambda: ec2.describe_instances(MaxResults=4)) == "InvalidParameterValue"
    assert refused(lambda: ec2.describe_instances(MaxResults=5, InstanceIds=ids)) == (
        "InvalidParameterCombination"
    )
    assert (
        refused(lambda: ec2.describe_instances(NextToken="?", MaxResults=5)) == "InvalidNextToken"
    )


@pytest.mark.parametrize(
    ("name", "values", "count"),
    [
        ("client-token", ["t-1"], 2),
        ("client-token", ["t-*"], 3),
        ("tag-key", ["fleetd-cell"], 3),
        ("tag:fleetd-cell", ["c2"], 0),
        ("instance-state-name", ["pending", "running"], 3),
        ("instance-state-name", ["terminated"], 0),
        ("availability-zone", [B], 1),
    ],
)
def test_filters(ec2: Any, name: str, values: list[str], count: int) -> None:
    run(ec2, 2)
    run(ec2, 1, B, token="t-2")
    assert len(listed(ec2, Filters=[{"Name": name, "Values": values}])) == count


def test_unknown_filter_is_refused(ec2: Any) -> None:
    filters = [{"Name": "colour", "Values": ["red"]}]
    assert refused(lambda: listed(ec2, Filters=filters)) == "InvalidParameterValue"


def test_token_repeats_the_first_result(bench: Bench, ec2: Any) -> None:
    first = run(ec2, 4)
    bench.turn(25)
    again = run(ec2, 4)
    assert [i["InstanceId"] for i in again["Instances"]] == [
        i["InstanceId"] for i in first["Instances"]
    ]
    assert {i["State"]["Name"] for i in again["Instances"]} == {"running"}
    assert bench.do(lambda: bench.world.ever) == 4


def test_token_with_another_body_is_a_mismatch(bench: Bench, ec2: Any) -> None:
    run(ec2, 1)
    code = refused(lambda: run(ec2, 1, UserData="#cloud-config\nother"))
    assert code == "IdempotentParameterMismatch"
    assert bench.do(lambda: bench.world.ever) == 1


def test_token_is_zonal(bench: Bench, ec2: Any) -> None:
    """PC-010: the same token in another zone is another launch (clouds.md 5)."""
    one, two = run(ec2, 1, A), run(ec2, 1, B)
    assert one["Instances"][0]["InstanceId"] != two["Instances"][0]["InstanceId"]
    assert bench.do(lambda: bench.world.ever_by_token["t-1"]) == 2


def test_token_without_zone_is_regional(bench: Bench, ec2: Any) -> None:
    one = run(ec2, 1, Placement=None)["Instances"][0]
    assert one["Placement"]["AvailabilityZone"] == A
    assert run(ec2, 1, Placement=None)["Instances"][0]["InstanceId"] == one["InstanceId"]


def test_zone_ids_name_zones(ec2: Any) -> None:
    zones = ec2.describe_availability_zones()["AvailabilityZones"]
    assert [(z["ZoneName"], z["ZoneId"]) for z in zones] == [(A, "use1-az1"), (B, "use1-az2")]
    made = run(ec2, 1, Placement={"AvailabilityZoneId": "use1-az2"})["Instances"][0]
    assert made["Placement"]["AvailabilityZone"] == B


def test_capacity_is_partial_then_refused(ec2: Any) -> None:
    assert len(run(ec2, 10, B)["Instances"]) == 3
    assert refused(lambda: run(ec2, 1, B, token="t-2")) == "InsufficientInstanceCapacity"
    assert refused(lambda: run(ec2, 5, B, token="t-3", MinCount=5)) == (
        "InsufficientInstanceCapacity"
    )


def test_capacity_storm_is_over_when_it_is_over(bench: Bench, ec2: Any) -> None:
    bench.inject(Kind.CAPACITY_STORM, 100, zone=A)
    assert refused(lambda: run(ec2, 1)) == "InsufficientInstanceCapacity"
    bench.turn(101)
    assert len(run(ec2, 1)["Instances"]) == 1


def test_throttle_after_the_burst_of_five(bench: Bench, ec2: Any) -> None:
    """RunInstances: 5 requests, then 2 a second (clouds.md 5)."""
    for n in range(5):
        run(ec2, 1, token=f"t-{n}")
    with pytest.raises(ClientError) as caught:
        run(ec2, 1, token="t-5")
    answer = caught.value.response
    assert answer["Error"]["Code"] == "RequestLimitExceeded"
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 503
    bench.turn(0.5)
    run(ec2, 1, token="t-5")


def test_accepted_then_dead(bench: Bench, ec2: Any) -> None:
    bench.inject(Kind.DIE_AFTER_ACCEPT)
    made = run(ec2, 8)["Instances"]
    bench.turn(21)
    found = listed(ec2, InstanceIds=[i["InstanceId"] for i in made])
    assert {i["State"]["Name"] for i in found} == {"terminated"}
    assert {i["StateReason"]["Code"] for i in found} == {
        "Server.InsufficientInstanceCapacity",
        "Server.InternalError",
    }


def test_spot_is_marked_and_reclaimed(bench: Bench, ec2: Any) -> None:
    spot = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
    made = run(ec2, 1, InstanceMarketOptions=spot)["Instances"][0]
    assert made["InstanceLifecycle"] == "spot"
    bench.turn(21)
    cloud = bench.world.clouds["aws"]
    bench.do(lambda: cloud.reclaim(cloud.machines[made["InstanceId"]]))
    bench.turn(119)
    assert listed(ec2)[0]["State"]["Name"] == "running"
    bench.turn(2)
    assert listed(ec2)[0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_listing_lags(bench: Bench, ec2: Any) -> None:
    """PC-106: a fresh id is not found, and that does not mean that it is not there."""
    bench.inject(Kind.LIST_LAG, value=40)
    ids = [run(ec2, 1)["Instances"][0]["InstanceId"]]
    assert listed(ec2) == []
    assert refused(lambda: listed(ec2, InstanceIds=ids)) == "InvalidInstanceID.NotFound"
    assert refused(lambda: ec2.terminate_instances(InstanceIds=ids)) == (
        "InvalidInstanceID.NotFound"
    )
    bench.turn(41)
    assert [i["State"]["Name"] for i in listed(ec2)] == ["pending"]
    bench.turn(20)
    assert [i["State"]["Name"] for i in listed(ec2)] == ["running"]


def test_list_breaks_off(bench: Bench, ec2: Any) -> None:
    run(ec2, 12)
    first = ec2.describe_instances(MaxResults=5)
    bench.inject(Kind.LIST_TRUNCATED)
    again = {"MaxResults": 5, "NextToken": first["NextToken"]}
    assert refused(lambda: ec2.describe_instances(**again)) == "Unavailable"


@pytest.mark.parametrize(
    ("kind", "at_once", "later"),
    [(Kind.CREATE_UNHEARD, 2, 2), (Kind.CREATE_LOST, 0, 0), (Kind.CREATE_LATE, 0, 2)],
)
def test_answer_lost(bench: Bench, ec2: Any, kind: Kind, at_once: int, later: int) -> None:
    """A create call without answer may have worked, not have worked, or work later."""
    bench.inject(kind, 10, value=30)
    with pytest.raises(ConnectionClosedError):
        run(ec2, 2)
    assert bench.do(lambda: len(list(bench.world.existing()))) == at_once
    bench.turn(31)
    assert bench.do(lambda: len(list(bench.world.existing()))) == later
    assert len(run(ec2, 2)["Instances"]) == 2
    assert bench.do(lambda: bench.world.ever_by_token["t-1"]) == 2


def test_api_cut(bench: Bench, ec2: Any) -> None:
    bench.inject(Kind.API_CUT, 10)
    with pytest.raises(ConnectionClosedError):
        listed(ec2)
    bench.turn(11)
    assert listed(ec2) == []


def test_bad_signature(ec2: Any) -> None:
    def spoil(request: Any, **_: Any) -> None:
        request.headers["Authorization"] = "AWS4-HMAC-SHA256 Credential=x, Signature=y"

    ec2.meta.events.register("before-send.ec2", spoil)
    assert refused(lambda: listed(ec2)) == "AuthFailure"


def test_unsigned(ec2: Any) -> None:
    ec2.meta.events.register(
        "before-send.ec2", lambda request, **_: request.headers.__delitem__("Authorization")
    )
    assert refused(lambda: listed(ec2)) == "AuthFailure"


def test_region_comes_from_the_credential_scope(bench: Bench, ec2: Any) -> None:
    run(ec2, 1)
    west = bench.client("us-west-2")
    assert listed(west) == []
    assert refused(lambda: listed(bench.client("mars-north-1"))) == "AuthFailure"
    assert refused(lambda: run(west, 1, Placement=None)) == "Unsupported"


def test_expired_credentials(bench: Bench, ec2: Any) -> None:
    bench.inject(Kind.CREDENTIALS, 60)
    assert refused(lambda: listed(ec2)) == "ExpiredToken"
    assert refused(lambda: run(ec2, 1)) == "ExpiredToken"
    bench.turn(61)
    assert listed(ec2) == []


@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"UserData": "x" * 17_000}, "InvalidParameterValue"),
        ({"ImageId": "ami-9999"}, "InvalidAMIID.NotFound"),
        ({"ImageId": "gold"}, "InvalidAMIID.Malformed"),
        ({"InstanceType": "p9.huge"}, "InvalidParameterValue"),
        ({"InstanceType": "g6.xlarge"}, "Unsupported"),
        ({"Placement": {"AvailabilityZone": "us-east-1z"}}, "InvalidParameterValue"),
        ({"MinCount": 3, "MaxCount": 2}, "InvalidParameterValue"),
        ({"ClientToken": "x" * 65}, "InvalidParameterValue"),
        ({"DryRun": True}, "DryRunOperation"),
    ],
)
def test_what_ec2_refuses(bench: Bench, ec2: Any, over: dict[str, Any], code: str) -> None:
    assert refused(lambda: run(ec2, 1, **over)) == code
    assert bench.do(lambda: bench.world.ever) == 0


def test_user_data_arrives_as_it_was(bench: Bench, ec2: Any) -> None:
    text = "#cloud-config\n# ünïcode " + "x" * 16_000
    made = run(ec2, 1, UserData=text)["Instances"][0]["InstanceId"]
    assert bench.do(lambda: bench.world.clouds["aws"].machines[made].user_data) == text


def test_terminate_fails_as_a_whole_for_one_wrong_id(bench: Bench, ec2: Any) -> None:
    good = run(ec2, 1)["Instances"][0]["InstanceId"]
    wrong = "i-00000000000000bad"
    assert refused(lambda: ec2.terminate_instances(InstanceIds=[good, wrong])) == (
        "InvalidInstanceID.NotFound"
    )
    machine = bench.world.clouds["aws"].machines[good]
    assert bench.do(lambda: machine.phase) is Phase.PENDING


def test_catalogue_reads(ec2: Any) -> None:
    assert [r["RegionName"] for r in ec2.describe_regions()["Regions"]] == [
        "us-east-1",
        "us-west-2",
    ]
    types = ec2.describe_instance_types(InstanceTypes=[TYPE])["InstanceTypes"]
    assert types[0]["GpuInfo"]["Gpus"][0]["Count"] == 8
    assert types[0]["SupportedUsageClasses"] == ["on-demand", "spot"]
    images = ec2.describe_images(ImageIds=["ami-0001"])["Images"]
    assert images[0]["State"] == "available"
    assert refused(lambda: ec2.describe_images(ImageIds=["ami-2"])) == "InvalidAMIID.NotFound"


def test_status_checks(bench: Bench, ec2: Any) -> None:
    run(ec2, 1)
    assert ec2.describe_instance_status()["InstanceStatuses"] == []
    bench.turn(21)
    status = ec2.describe_instance_status()["InstanceStatuses"][0]
    assert status["InstanceStatus"]["Status"] == "initializing"
    bench.turn(3600)
    status = ec2.describe_instance_status()["InstanceStatuses"][0]
    assert status["InstanceStatus"]["Status"] == "ok"


def test_actions_that_are_not_there(bench: Bench, ec2: Any) -> None:
    assert refused(ec2.describe_vpcs) == "InvalidAction"
    assert bench.app.errors == {"InvalidAction": 1}
