"""What the EC2 adapter asks for, and what it makes of refusals.

Proves what moto cannot: the content of requests (moto ignores ClientToken) and every entry of
``CODES``.
"""

from __future__ import annotations

from typing import Any

import pytest
from canned_ec2 import (
    SPEC,
    Canned,
    caught,
    everything,
    ran,
    refs,
    refusal,
    run,
)

from fleet.errors import (
    Ambiguous,
    InsufficientCapacity,
    InvalidRequest,
    ProviderError,
    Throttled,
    Unavailable,
)
from fleet.model import LaunchSpec, Market, Offer
from providers.base import TAG_CELL, TAG_TOKEN
from providers.ec2 import CODES, Region


def test_one_call_carries_the_whole_batch_and_its_token() -> None:
    """The idempotency key, the tags at creation, the count: in one request."""
    p = Canned(lambda _: ran(0, 1, 2))
    results = run(p.create(SPEC))
    assert [r.ref.instance_id for r in results] == [f"i-{i:017x}" for i in range(3)]
    (sent,) = p.sent
    tags = {
        sent[f"TagSpecification.1.Tag.{n}.Key"]: sent[f"TagSpecification.1.Tag.{n}.Value"]
        for n in range(1, 6)
    }
    assert tags == {
        "fleetd-cell": "prod",
        "fleetd-pool": "train",
        "fleetd-token": SPEC.token,
        "fleetd-image": "base@1.0.0",
        "Name": "prod-train",
    }
    assert sent["TagSpecification.1.ResourceType"] == "instance"
    wanted = {
        "Action": "RunInstances",
        "ClientToken": SPEC.token,
        "MinCount": "1",
        "MaxCount": "3",
        "ImageId": "ami-1",
        "InstanceType": "p5.48xlarge",
        "Placement.AvailabilityZone": "us-east-1a",
        "UserData": "I2Nsb3VkLWNvbmZpZwojIMO8Cg==",  # base64 by boto3, once
        "MetadataOptions.HttpTokens": "required",
        "MetadataOptions.HttpPutResponseHopLimit": "1",
        "InstanceInitiatedShutdownBehavior": "terminate",
    }
    assert {k: sent.get(k) for k in wanted} == wanted
    assert "InstanceMarketOptions.MarketType" not in sent


def test_a_repeat_sends_the_identical_request() -> None:
    """Another body under the same token is refused by EC2 (IdempotentParameterMismatch)."""
    p = Canned(lambda _: ran(0, 1, 2))

    async def main() -> None:
        await p.create(SPEC)
        await p.create(SPEC)

    run(main())
    other = Canned(lambda _: ran(0, 1, 2))
    run(other.create(SPEC))
    assert p.sent[0] == p.sent[1] == other.sent[0]


def test_markets_placement_and_network() -> None:
    """Spot is one-time; a capacity block names its reservation; zone ids go in as ids."""
    region = Region(
        subnets={"use1-az4": "subnet-4", "any": "subnet-0"},
        security_groups=["sg-1", "sg-2"],
        key_name="ops",
        instance_profile="arn:aws:iam::1:instance-profile/node",
        capacity_blocks={"p5e.48xlarge": "cr-1"},
    )
    p = Canned(lambda _: ran(0), regions={"us-east-1": region})

    async def main() -> None:
        for zone, type_, market in [
            ("use1-az4", "p5.48xlarge", Market.SPOT),
            ("us-east-1b", "p5e.48xlarge", Market.RESERVED),
            ("", "p5.48xlarge", Market.ON_DEMAND),
        ]:
            offer = Offer("aws", "us-east-1", zone, type_, market)
            await p.create(LaunchSpec("t", offer, 1, "ami-1", "", {}, "p", "c"))

    run(main())
    spot, block, plain = p.sent
    assert spot["Placement.AvailabilityZoneId"] == "use1-az4"
    assert spot["InstanceMarketOptions.MarketType"] == "spot"
    assert spot["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    assert (spot["SubnetId"], spot["SecurityGroupId.2"]) == ("subnet-4", "sg-2")
    assert (spot["KeyName"], spot["IamInstanceProfile.Arn"]) == ("ops", region.instance_profile)
    assert block["InstanceMarketOptions.MarketType"] == "capacity-block"
    target = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    assert (block[target], block["SubnetId"]) == ("cr-1", "subnet-0")
    assert not [k for k in plain if k.startswith(("Placement", "InstanceMarketOptions"))]


def test_fewer_than_asked() -> None:
    """The rest is InsufficientCapacity with EC2's code and request id."""
    results = run(Canned(lambda _: ran(0)).create(SPEC))
    assert [r.ref is not None for r in results] == [True, False, False]
    error = results[1].error
    assert type(error) is InsufficientCapacity
    assert (error.code, error.request_id) == ("InsufficientInstanceCapacity", "req-2")


@pytest.mark.parametrize(
    "over",
    [
        {"token": ""},
        {"token": "x" * 65},
        {"token": "tökén"},
        {"user_data": "x" * (16 * 1024 + 1)},
        {"tags": {"aws:x": "y"}},
        {"tags": {"k": "v" * 257}},
        {"tags": {f"k{n}": "v" for n in range(50)}},
        {"offer": Offer("aws", "mars-1", "", "p5.48xlarge")},
        {"offer": Offer("aws", "us-east-1", "", "p5.48xlarge", Market.RESERVED)},
        {"count": "three"},
    ],
)
def test_what_ec2_would_refuse_is_not_sent(over: dict[str, Any]) -> None:
    """EC2 refuses 17 kB of user data where moto accepts it."""
    values = {f: getattr(SPEC, f) for f in SPEC.__slots__}
    p = Canned(lambda _: ran(0))
    assert type(run(caught(p.create(LaunchSpec(**values | over))))) is InvalidRequest
    assert p.sent == []


def test_caller_tags_never_hide_whose_it_is() -> None:
    """Ours win."""
    values = {f: getattr(SPEC, f) for f in SPEC.__slots__}
    p = Canned(lambda _: ran(0, 1, 2))
    run(p.create(LaunchSpec(**values | {"tags": {TAG_CELL: "x", TAG_TOKEN: "y"}})))
    assert {"prod", SPEC.token} <= set(p.sent[0].values())
    assert not {"x", "y"} & set(p.sent[0].values())


@pytest.mark.parametrize("code", CODES)
def test_every_code_raises_its_class(code: str) -> None:
    """The whole table, through boto3's own parser, on create."""
    error = run(caught(Canned(lambda _: refusal(code)).create(SPEC)))
    assert type(error) is CODES[code]
    assert (error.code, error.message, error.request_id) == (code, "words of the vendor", "req-1")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InternalError", 500, Ambiguous),
        ("InternalFailure", 500, Ambiguous),
        ("BrandNewCode", 502, Ambiguous),
        ("BrandNewCode", 400, Unavailable),
        ("ServiceUnavailable", 503, Unavailable),
        ("Unavailable", 503, Unavailable),
        ("RequestLimitExceeded", 503, Throttled),
        ("InsufficientInstanceCapacity", 500, InsufficientCapacity),
    ],
)
def test_a_create_is_busy_only_if_nothing_was_made(
    code: str, status: int, kind: type[ProviderError]
) -> None:
    """The engine closes launches after Busy as never made: a doubtful 5xx must not be Busy."""
    error = run(caught(Canned(lambda _: refusal(code, status=status)).create(SPEC)))
    assert (type(error), error.code) == (kind, code)


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "ExpiredToken", "InternalError"])
def test_codes_mean_the_same_for_every_verb(code: str) -> None:
    """List and delete translate by the same table."""
    p = Canned(lambda _: refusal(code, status=503))
    assert type(run(caught(everything(p)))) is CODES[code]
    assert type(run(caught(p.delete(refs(1))))) is CODES[code]


def test_sdk_retries_are_off() -> None:
    """By default botocore sends a capacity error four times more and loses nine seconds."""
    p = Canned(lambda _: refusal("InsufficientInstanceCapacity", status=500))
    run(caught(p.create(SPEC)))
    assert len(p.sent) == 1


def test_unknown_codes_keep_the_vendors_words() -> None:
    """Unavailable, so Busy; counted by the code."""
    error = run(caught(Canned(lambda _: refusal("BrandNewCode", "brand new")).create(SPEC)))
    assert (type(error), error.code, error.message) == (Unavailable, "BrandNewCode", "brand new")


def test_zones_with_capacity_are_read_from_the_message() -> None:
    """EC2 says where else."""
    text = (
        "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you "
        "requested (us-east-1a). You can currently get p5.48xlarge capacity by not specifying an "
        "Availability Zone in your request or choosing us-east-1b, us-east-1f."
    )
    p = Canned(lambda _: refusal("InsufficientInstanceCapacity", text))
    assert run(caught(p.create(SPEC))).zones_with_capacity == ("us-east-1b", "us-east-1f")


def test_encoded_messages_are_left_out() -> None:
    """UnauthorizedOperation brings a kilobyte that nobody can read."""
    text = f"You are not authorized. Encoded authorization failure message: {'Ab9-' * 300}"
    error = run(caught(Canned(lambda _: refusal("UnauthorizedOperation", text)).create(SPEC)))
    assert error.message == "You are not authorized. (encoded details left out)"


def test_html_in_place_of_xml_is_ambiguous_for_create() -> None:
    """A proxy or a broken server: nobody knows what happened behind it."""
    p = Canned(lambda _: (200, "<html><body>Bad gateway<br></body>"))
    assert type(run(caught(p.create(SPEC)))) is Ambiguous
    assert type(run(caught(everything(p)))) is Unavailable
