"""EC2's words: requests, answers, errors. Pure; ``providers/aws.py`` speaks them.

Invariant: ``CODES`` decides what every vendor code means, nothing else does; the same spec gives
the same request, byte for byte, or EC2 refuses the repeated token. Nothing here imports botocore.

Facts and wire shapes: clouds.md 2.1, 4 and 5. Codes marked [K] are hypotheses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from fleet.errors import (
    Ambiguous,
    Gone,
    ImageNotFound,
    InsufficientCapacity,
    InvalidRequest,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unavailable,
)
from fleet.model import Instance, InstanceRef, LaunchSpec, Market, Offer, Phase
from providers.base import TAG_CELL, TAG_IMAGE, TAG_POOL, TAG_TOKEN

CODES: Final[Mapping[str, type[ProviderError]]] = {
    "InsufficientInstanceCapacity": InsufficientCapacity,
    "InsufficientHostCapacity": InsufficientCapacity,
    "InsufficientReservedInstanceCapacity": InsufficientCapacity,
    "ReservationCapacityExceeded": InsufficientCapacity,
    "InsufficientCapacityOnOutpost": InsufficientCapacity,
    "UnfulfillableCapacity": InsufficientCapacity,
    "SpotMaxPriceTooLow": InsufficientCapacity,
    # "instance type not supported in your requested Availability Zone": other zones may have it
    "Unsupported": InsufficientCapacity,
    "VcpuLimitExceeded": QuotaExceeded,
    "InstanceLimitExceeded": QuotaExceeded,
    "MaxSpotInstanceCountExceeded": QuotaExceeded,
    "VolumeLimitExceeded": QuotaExceeded,
    "InsufficientFreeAddressesInSubnet": QuotaExceeded,
    "RequestLimitExceeded": Throttled,
    "Throttling": Throttled,
    "ThrottlingException": Throttled,
    "EC2ThrottledException": Throttled,
    "InvalidAMIID.NotFound": ImageNotFound,
    "InvalidAMIID.Malformed": ImageNotFound,
    "InvalidAMIID.Unavailable": ImageNotFound,
    "InvalidParameterValue": InvalidRequest,
    "InvalidParameterCombination": InvalidRequest,
    "InvalidParameter": InvalidRequest,
    "MissingParameter": InvalidRequest,
    "UnknownParameter": InvalidRequest,
    "InvalidSubnetID.NotFound": InvalidRequest,
    "InvalidGroup.NotFound": InvalidRequest,
    "InvalidKeyPair.NotFound": InvalidRequest,
    "OperationNotPermitted": InvalidRequest,  # termination protection
    "AuthFailure": Unauthorized,
    "UnauthorizedOperation": Unauthorized,
    "InvalidClientTokenId": Unauthorized,
    "ExpiredToken": Unauthorized,
    "ExpiredTokenException": Unauthorized,
    "RequestExpired": Unauthorized,
    "SignatureDoesNotMatch": Unauthorized,
    "OptInRequired": Unauthorized,
    "PendingVerification": Unauthorized,
    "InternalError": Unavailable,
    "InternalFailure": Unavailable,
    "ServiceUnavailable": Unavailable,
    "Unavailable": Unavailable,
    "InvalidInstanceID.NotFound": Gone,
    "InvalidInstanceID.Malformed": Gone,
    # an earlier request with this token went through with another body: list() will tell
    "IdempotentParameterMismatch": Ambiguous,
}

#: 5xx answers that are given before anything is done. After any other (InternalError, a gateway's
#: own page, a code nobody knows) a create may have worked: it is Ambiguous, since a caller that
#: gives up on Busy closes the launch as never made.
NO_EFFECT: Final = frozenset({"ServiceUnavailable", "Unavailable"})

#: StateReason of instances that were accepted and then died, as the refusal it amounts to.
DIED: Final[Mapping[str, type[ProviderError]]] = {
    "Server.InsufficientInstanceCapacity": InsufficientCapacity,
    "Client.InternalError": InvalidRequest,  # in practice a key of an encrypted volume [K]
    "Client.VolumeLimitExceeded": QuotaExceeded,
    "Client.InvalidSnapshot.NotFound": ImageNotFound,
}
PREEMPTED: Final = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})

#: botocore's own errors by class name (botocore is not imported here), most derived first. Those
#: under Unavailable are raised before anything is sent; any other may have had an effect.
LOCAL: Final[Mapping[str, type[ProviderError]]] = {
    "NoCredentialsError": Unauthorized,
    "PartialCredentialsError": Unauthorized,
    "ProfileNotFound": Unauthorized,
    "ConfigNotFound": Unauthorized,
    "ConfigParseError": Unauthorized,
    "CredentialRetrievalError": Unauthorized,
    "MetadataRetrievalError": Unauthorized,
    "NoAuthTokenError": Unauthorized,
    "TokenRetrievalError": Unauthorized,
    "SSOError": Unauthorized,
    "EndpointConnectionError": Unavailable,
    "ConnectTimeoutError": Unavailable,
    "ProxyConnectionError": Unavailable,
    "ParamValidationError": InvalidRequest,
    "InvalidRegionError": InvalidRequest,
    "UnknownEndpointError": InvalidRequest,
}

PHASES: Final[Mapping[str, Phase]] = {
    "pending": Phase.PENDING,
    "running": Phase.RUNNING,
    "shutting-down": Phase.STOPPING,
    "stopping": Phase.STOPPING,
    "stopped": Phase.STOPPED,
    "terminated": Phase.TERMINATED,
}

MAX_USER_DATA_BYTES = 16 * 1024
MAX_TOKEN_CHARS = 64
MAX_TAGS, MAX_TAG_KEY, MAX_TAG_VALUE = 50, 128, 256
MAX_MESSAGE_CHARS = 500

_ZONE_ID = re.compile(r"^[a-z0-9]+-az\d+$")
INSTANCE_ID = re.compile(r"\bi-\w+")
_ELSEWHERE = re.compile(r"choosing ([a-z0-9, -]+)")
_ENCODED = re.compile(r"\s*Encoded authorization failure message:.*", re.DOTALL)


class Region(BaseModel):
    """One region of the account and what instances there are launched into."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: Zone name to zone id, as this account sees them; ids are optional and give spot prices.
    zones: dict[str, str] = {}
    #: Zone name (or ``any``) to subnet id.
    subnets: dict[str, str] = {}
    security_groups: list[str] = []
    key_name: str = ""
    #: Name or ARN of the instance profile the nodes get.
    instance_profile: str = ""
    #: Instance type to the capacity reservation id of a bought capacity block.
    capacity_blocks: dict[str, str] = {}


def run_request(spec: LaunchSpec, region: Region) -> dict[str, Any]:
    """The RunInstances request of ``spec``: the same spec gives the same request, byte for byte.

    Raises InvalidRequest for what EC2 would refuse or silently cut.
    """
    zone = spec.offer.zone
    request: dict[str, Any] = {
        "ClientToken": _checked_token(spec.token),
        "ImageId": spec.image_id,
        "InstanceType": spec.offer.instance_type,
        "MinCount": 1,
        "MaxCount": spec.count,
        "UserData": _checked_user_data(spec.user_data),
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        # a node that shuts itself down must not stay as a stopped one with a billed disk
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": _tags(spec)} for kind in ("instance", "volume")
        ],
    }
    if zone:
        key = "AvailabilityZoneId" if _ZONE_ID.match(zone) else "AvailabilityZone"
        request["Placement"] = {key: zone}
    if subnet := region.subnets.get(zone) or region.subnets.get("any"):
        request["SubnetId"] = subnet
    if region.security_groups:
        request["SecurityGroupIds"] = list(region.security_groups)
    if region.key_name:
        request["KeyName"] = region.key_name
    if profile := region.instance_profile:
        request["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
    return request | _market(spec.offer, region)


def _market(offer: Offer, region: Region) -> dict[str, Any]:
    if offer.market is Market.SPOT:
        spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": spot}}
    if offer.market is Market.RESERVED:
        block = region.capacity_blocks.get(offer.instance_type)
        if not block:
            raise InvalidRequest(f"no capacity block of {offer.instance_type} is configured")
        return {
            "InstanceMarketOptions": {"MarketType": "capacity-block"},
            "CapacityReservationSpecification": {
                "CapacityReservationTarget": {"CapacityReservationId": block}
            },
        }
    return {}


def _tags(spec: LaunchSpec) -> list[dict[str, str]]:
    """The caller's tags and ours; ours win, for they say whose instances these are."""
    tags = {
        TAG_IMAGE: spec.image_id,
        "Name": f"{spec.cell}-{spec.pool}",
        **spec.tags,
        TAG_CELL: spec.cell,
        TAG_POOL: spec.pool,
        TAG_TOKEN: spec.token,
    }
    too_long = [k for k, v in tags.items() if len(k) > MAX_TAG_KEY or len(v) > MAX_TAG_VALUE]
    reserved = [k for k in tags if k.lower().startswith("aws:")]
    if len(tags) > MAX_TAGS or too_long or reserved:
        raise InvalidRequest(f"{len(tags)} tags; too long or reserved: {too_long + reserved}")
    return [{"Key": k, "Value": v} for k, v in sorted(tags.items())]


def _checked_token(token: str) -> str:
    if not (token and token.isascii() and len(token) <= MAX_TOKEN_CHARS):
        raise InvalidRequest(f"a client token has 1 to {MAX_TOKEN_CHARS} ASCII characters")
    return token


def _checked_user_data(text: str) -> str:
    if (size := len(text.encode())) > MAX_USER_DATA_BYTES:
        raise InvalidRequest(f"user data has {size} bytes, EC2 takes {MAX_USER_DATA_BYTES}")
    return text


def instance(ref: InstanceRef, i: Mapping[str, Any]) -> Instance:
    """What one item of DescribeInstances says; an incomplete one is PENDING (PC-166)."""
    tags = {t["Key"]: t["Value"] for t in i.get("Tags", ())}
    why = i.get("StateReason", {})
    market = {"spot": Market.SPOT, "capacity-block": Market.RESERVED}
    launched = i.get("LaunchTime")
    died = DIED.get(why.get("Code", ""))
    return Instance(
        ref=ref,
        phase=PHASES.get(i.get("State", {}).get("Name", ""), Phase.PENDING),
        token=tags.get(TAG_TOKEN, ""),
        pool=tags.get(TAG_POOL, ""),
        cell=tags.get(TAG_CELL, ""),
        instance_type=i.get("InstanceType", ""),
        market=market.get(i.get("InstanceLifecycle", ""), Market.ON_DEMAND),
        image_id=i.get("ImageId", ""),
        created_at=launched.timestamp() if launched else 0.0,
        code=why.get("Code", ""),
        message=why.get("Message", "")[:MAX_MESSAGE_CHARS],
        preempted=why.get("Code") in PREEMPTED,
        died=died.outcome if died is not None else None,
    )


def translate(e: Exception, *, creates: bool) -> ProviderError:
    """What botocore raised, as one of ours; ``creates`` when an effect would be an instance."""
    answer = getattr(e, "response", None)
    if isinstance(answer, dict) and "Error" in answer:
        return _from_answer(answer, creates)
    names = [c.__name__ for c in type(e).__mro__]
    kind = next((LOCAL[n] for n in names if n in LOCAL), Ambiguous if creates else Unavailable)
    text = str(e)[:MAX_MESSAGE_CHARS]
    if kind is Unauthorized:
        text += " (looked in: the configured profile, AWS_* variables, AWS files, instance role)"
    return kind(text, code=names[0])


def _from_answer(answer: Mapping[str, Any], creates: bool) -> ProviderError:
    """An unknown code keeps the vendor's words and is Unavailable (see NO_EFFECT for creates)."""
    error, meta = answer["Error"], answer.get("ResponseMetadata", {})
    code = str(error.get("Code", "")) or str(meta.get("HTTPStatusCode", ""))
    message = _ENCODED.sub(" (encoded details left out)", str(error.get("Message", "")))
    elsewhere = _ELSEWHERE.search(message)
    kind = CODES.get(code, Unavailable)
    status = int(meta.get("HTTPStatusCode") or 0)
    if creates and kind is Unavailable and status >= 500 and code not in NO_EFFECT:
        kind = Ambiguous
    retry_after = meta.get("HTTPHeaders", {}).get("retry-after", "")
    return kind(
        message[:MAX_MESSAGE_CHARS],
        code=code,
        request_id=str(meta.get("RequestId", "")),
        retry_after_s=float(retry_after) if retry_after.isdigit() else None,
        zones_with_capacity=tuple(re.findall(r"[a-z0-9-]+\d[a-z]\b", elsewhere.group(1)))
        if elsewhere
        else (),
    )
