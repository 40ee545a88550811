"""What the four clouds call their troubles, and how each behaves by default.

Invariant: the world speaks of ``Trouble``; only this table knows a vendor's words (clouds.md
section 4), so a skin and a test agree on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from fleet.errors import FleetError
from fleet.sim.capacity import BucketSpec


class Trouble(StrEnum):
    """Why a simulated cloud says no, or why an instance ended."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    THROTTLED = "throttled"
    INVALID = "invalid"
    IMAGE = "image"
    AUTH = "auth"
    MISMATCH = "mismatch"
    UNAVAILABLE = "unavailable"
    TOO_LONG = "too_long"
    DIED_CAPACITY = "died_capacity"
    DIED_INTERNAL = "died_internal"
    RECLAIMED = "reclaimed"
    USER = "user"


class Denied(FleetError):
    """A simulated cloud's refusal: nothing was made. Skins turn it into their own error form."""

    def __init__(self, trouble: Trouble, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.trouble, self.code, self.message = trouble, code, message


CODES: Final[Mapping[str, Mapping[Trouble, str]]] = {
    "aws": {
        Trouble.CAPACITY: "InsufficientInstanceCapacity",
        Trouble.QUOTA: "VcpuLimitExceeded",
        Trouble.THROTTLED: "RequestLimitExceeded",
        Trouble.INVALID: "InvalidParameterValue",
        Trouble.IMAGE: "InvalidAMIID.NotFound",
        Trouble.AUTH: "ExpiredToken",
        Trouble.MISMATCH: "IdempotentParameterMismatch",
        Trouble.UNAVAILABLE: "Unavailable",
        Trouble.TOO_LONG: "InvalidParameterValue",
        Trouble.DIED_CAPACITY: "Server.InsufficientInstanceCapacity",
        Trouble.DIED_INTERNAL: "Server.InternalError",
        Trouble.RECLAIMED: "Server.SpotInstanceTermination",
        Trouble.USER: "Client.UserInitiatedShutdown",
    },
    "gcp": {
        Trouble.CAPACITY: "ZONE_RESOURCE_POOL_EXHAUSTED",
        Trouble.QUOTA: "QUOTA_EXCEEDED",
        Trouble.THROTTLED: "rateLimitExceeded",
        Trouble.INVALID: "invalid",
        Trouble.IMAGE: "notFound",
        Trouble.AUTH: "IAM_PERMISSION_DENIED",
        Trouble.MISMATCH: "alreadyExists",
        Trouble.UNAVAILABLE: "backendError",
        Trouble.TOO_LONG: "invalid",
        Trouble.DIED_CAPACITY: "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        Trouble.DIED_INTERNAL: "INTERNAL_ERROR",
        Trouble.RECLAIMED: "compute.instances.preempted",
        Trouble.USER: "delete",
    },
    "azure": {
        Trouble.CAPACITY: "ZonalAllocationFailed",
        Trouble.QUOTA: "QuotaExceeded",
        Trouble.THROTTLED: "SubscriptionRequestsThrottled",
        Trouble.INVALID: "InvalidParameter",
        Trouble.IMAGE: "GalleryImageNotFound",
        Trouble.AUTH: "AuthorizationFailed",
        Trouble.MISMATCH: "PropertyChangeNotAllowed",
        Trouble.UNAVAILABLE: "InternalServerError",
        Trouble.TOO_LONG: "InvalidParameter",
        Trouble.DIED_CAPACITY: "AllocationFailed",
        Trouble.DIED_INTERNAL: "InternalExecutionError",
        Trouble.RECLAIMED: "Preempted",
        Trouble.USER: "Deleted",
    },
    "oci": {
        Trouble.CAPACITY: "InternalError",
        Trouble.QUOTA: "LimitExceeded",
        Trouble.THROTTLED: "TooManyRequests",
        Trouble.INVALID: "InvalidParameter",
        Trouble.IMAGE: "NotAuthorizedOrNotFound",
        Trouble.AUTH: "NotAuthenticated",
        Trouble.MISMATCH: "InvalidatedRetryToken",
        Trouble.UNAVAILABLE: "ServiceUnavailable",
        Trouble.TOO_LONG: "InvalidParameter",
        Trouble.DIED_CAPACITY: "OutOfHostCapacity",
        Trouble.DIED_INTERNAL: "InternalServerError",
        Trouble.RECLAIMED: "Preempted",
        Trouble.USER: "Terminated",
    },
}

MESSAGES: Final[Mapping[Trouble, str]] = {
    Trouble.CAPACITY: "Out of host capacity for the requested type in the requested zone.",
    Trouble.QUOTA: "You have requested more than your current limit allows.",
    Trouble.THROTTLED: "Request limit exceeded.",
    Trouble.INVALID: "The request is not valid.",
    Trouble.IMAGE: "The image does not exist.",
    Trouble.AUTH: "The security token included in the request is expired.",
    Trouble.MISMATCH: "The token was used before with other parameters.",
    Trouble.UNAVAILABLE: "The service is unavailable. Please try again shortly.",
    Trouble.TOO_LONG: "User data is limited.",
    Trouble.DIED_CAPACITY: "Insufficient capacity to fulfil the request after it was accepted.",
    Trouble.DIED_INTERNAL: "An internal error caused the instance to terminate during launch.",
    Trouble.RECLAIMED: "The cloud took the spot instance back.",
    Trouble.USER: "User initiated.",
}

#: Action class → bucket, per region. ``*_items`` buckets count instances, not requests.
BUCKETS: Final[Mapping[str, Mapping[str, BucketSpec]]] = {
    "aws": {
        "launch": BucketSpec(5, 2),
        "launch_items": BucketSpec(1000, 2),
        "terminate": BucketSpec(100, 5),
        "terminate_items": BucketSpec(1000, 20),
        "list": BucketSpec(100, 20),
        "list_all": BucketSpec(50, 10),
        "read": BucketSpec(100, 20),
    },
    # Compute Engine refills at the minute boundary; a bucket of one minute is close enough.
    "gcp": {
        "launch": BucketSpec(1500, 25),
        "terminate": BucketSpec(1500, 25),
        "list": BucketSpec(1500, 25),
    },
    "azure": {
        "launch": BucketSpec(200, 10),
        "terminate": BucketSpec(200, 10),
        "list": BucketSpec(250, 25),
    },
    "oci": {
        "launch": BucketSpec(5, 20),
        "terminate": BucketSpec(5, 20),
        "list": BucketSpec(5, 20),
    },
}

#: Largest user data in bytes, before base64 (clouds.md section 6).
USER_DATA_MAX: Final[Mapping[str, int]] = {
    "aws": 16 * 1024,
    "gcp": 256 * 1024,
    "azure": 65_535,
    "oci": 24_000,
}

#: Where an idempotency key is unique.
TOKEN_SCOPE: Final[Mapping[str, str]] = {
    "aws": "zone",
    "gcp": "zone",
    "azure": "account",
    "oci": "region",
}
