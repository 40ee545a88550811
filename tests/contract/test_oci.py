"""The Oracle adapter against canned answers: what every code means, and what it sends.

PC-166, PC-192: accepted-then-dead, throttling.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest
from canned_oci import (
    FULL,
    IDENT,
    Asked,
    Canned,
    Said,
    create,
    delete,
    described,
    everything,
    ref,
    refusal,
)
from wire_oci import (
    COMPARTMENT,
    FAR,
    IMAGE,
    METAL,
    OTHER,
    REGION,
    SUBNET,
    TENANCY,
    TYPE,
    ZONE,
    launch,
    oci_settings,
    offer,
)

from fleet.errors import (
    Ambiguous,
    ImageNotFound,
    InsufficientCapacity,
    InvalidRequest,
    QuotaExceeded,
    Throttled,
    Unauthorized,
    Unavailable,
)
from fleet.model import InstanceRef, Market, Need, Offer, Outcome, Phase
from providers import oci, registry
from providers.oracle.codes import CODES, DIED, UNSEEN
from providers.oracle.nouns import launch_body, name_of, retry_token, zone_of

pytest.importorskip("oci")

#: Codes that a status of its own gives.
STATUS = {"401": 401, "403": 403, "429": 429, UNSEEN: 404}


@pytest.mark.parametrize("code", CODES)
def test_every_code_raises_its_class(code: str) -> None:
    """With the vendor's words kept. An image is there to be seen, so a 404 is about another."""

    def script(asked: Asked) -> Said:
        if asked.what.startswith("images/"):
            return 200, {"id": IMAGE, "lifecycleState": "AVAILABLE"}
        return refusal(STATUS.get(code, 400), code, **{"opc-request-id": "r-1"})

    error = Canned(script).error(create)
    assert (type(error), error.code, error.request_id) == (CODES[code], code, "r-1")
    assert error.message.startswith("the words")


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (500, "InternalError", "Out of host capacity.", InsufficientCapacity),
        (500, "InternalError", "Out of capacity for shape VM.GPU.A10.2 in domain X",
         InsufficientCapacity),
        (500, "InternalError", "Internal error occurred", Ambiguous),
        (500, "InternalServerError", "", Ambiguous),
        (502, "", "a gateway's page", Ambiguous),
        (500, "SomethingNew", "perhaps", Ambiguous),
        (503, "ServiceUnavailable", "later", Unavailable),
        (400, "SomethingNew", "who knows", Unavailable),
        (409, "IncorrectState", "busy", Unavailable),
        (409, "InvalidatedRetryToken", "it was deleted", Ambiguous),
        (429, "", "slow down", Throttled),
        (429, "SomethingNew", "slow down", Throttled),
        (400, "LimitExceeded", "service limits were exceeded: gpu-h100-count", QuotaExceeded),
        (400, "InvalidParameter", "Invalid ssh key", InvalidRequest),
        (400, "InvalidParameter", "Shape X is not valid for image ocid1.image.oc1.x",
         ImageNotFound),
        (400, "InvalidParameter", "Shape X is not available in Uocm:PHX-AD-1",
         InsufficientCapacity),
        (400, "RelatedResourceNotAuthorizedOrNotFound", "subnet ocid1.subnet", InvalidRequest),
        (400, "RelatedResourceNotAuthorizedOrNotFound", "imageId ocid1.image", ImageNotFound),
        (401, "NotAuthenticated", "who?", Unauthorized),
    ],
)  # fmt: skip
def test_what_a_refused_launch_means(status: int, code: str, message: str, kind: Any) -> None:
    """The text tells want of capacity from a fault; an unknown code keeps the vendor's words."""
    p = Canned(lambda _: refusal(status, code, message))
    error = p.error(create)
    assert type(error) is kind
    assert error.code == (code or str(status))
    assert message in error.message
    launches = [a for a in p.sent if a.method == "POST"]
    assert len(launches) == 1, "SDK retries are off"


@pytest.mark.parametrize(
    ("image", "images", "kind", "words"),
    [
        ((200, {"id": IMAGE, "lifecycleState": "AVAILABLE"}), (200, []), Unauthorized, "the words"),
        (
            (200, {"id": IMAGE, "lifecycleState": "IMPORTING"}),
            (200, []),
            ImageNotFound,
            "IMPORTING",
        ),
        (refusal(404, UNSEEN), (200, []), ImageNotFound, "artifact not yet available"),
        (refusal(404, UNSEEN), refusal(404, UNSEEN), Unauthorized, "the words"),
        (refusal(503, "ServiceUnavailable"), (200, []), Unauthorized, "the words"),
    ],
)
def test_what_a_404_was_about(image: Said, images: Said, kind: Any, words: str) -> None:
    """Only an image that cannot be seen where images can is an artifact that is not there."""

    def script(asked: Asked) -> Said:
        if asked.method == "POST":
            return refusal(404, UNSEEN)
        return image if asked.what.startswith("images/") else images

    p = Canned(script)
    error = p.error(lambda provider: provider.create(launch("tok", 40)))
    assert (type(error), error.code) == (kind, UNSEEN)
    assert words in error.message
    assert len([a for a in p.sent if a.method == "GET" and "image" in a.what]) <= 2
    assert len([a for a in p.sent if a.method == "POST"]) <= 16, "a refusal ends the sending"


def test_a_401_tells_of_a_wrong_clock() -> None:
    """PC-031: five minutes are allowed."""
    late = {"date": "Tue, 01 Jan 2030 00:00:00 GMT"}
    error = Canned(lambda _: refusal(401, "NotAuthenticated", **late)).error(everything)
    assert "this machine's clock is off by" in error.message
    error = Canned(lambda _: refusal(401, "NotAuthenticated", date="nonsense")).error(everything)
    assert "the clock be right" in error.message


def test_a_hint_when_to_come_back_is_kept() -> None:
    p = Canned(lambda _: refusal(429, "TooManyRequests", **{"retry-after": "17"}))
    assert p.error(everything).retry_after_s == 17.0


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, UNSEEN, None),
        (404, "InvalidParameter", None),
        (409, "IncorrectState", None),
        (409, "ResourceLocked", Unavailable),
        (403, "NotAuthorized", Unauthorized),
        (500, "InternalError", Unavailable),
        (429, "TooManyRequests", Throttled),
    ],
)
def test_what_a_refused_delete_means(status: int, code: str, kind: Any) -> None:
    """Gone is done, and so is what is ending already; the rest is said."""
    p = Canned(lambda _: refusal(status, code))
    if kind is None:
        assert p.run(delete) is None
    else:
        assert type(p.error(delete)) is kind
    assert p.sent[0].query["preserveBootVolume"] == "false"


def test_a_list_that_is_refused_holds_the_provider() -> None:
    """A compartment that may not be seen is no empty one."""
    assert type(Canned(lambda _: refusal(404, UNSEEN)).error(everything)) is Unauthorized


def test_what_is_sent() -> None:
    """One body for all of a batch but for names, tokens that repeat, and the whole AD's name."""
    p = Canned(lambda a: (200, described(f"ocid1.instance.oc1.phx.{a.body['displayName']}")))
    spec = launch("tok", 2, tags={"fleetd-image": "base@1.0.0", "team": "red"})
    machine = oci.Machine(ssh_public_keys="ssh-ed25519 A", defined_tags={"Ops": {"Cost": "1"}})
    region = oci.Region(
        availability_domains=["AD-1"],
        subnet=SUBNET,
        fault_domain="FAULT-DOMAIN-2",
        security_groups=["ocid1.networksecuritygroup.oc1.phx.g"],
        compute_clusters={TYPE: "ocid1.computecluster.oc1.phx.c"},
    )
    p.settings = {"machine": machine, "regions": {REGION: region}}
    results = p.run(lambda provider: provider.create(spec))
    assert [r.ref.instance_id[-5:] for r in results] == ["tok-0", "tok-1"]
    sent = sorted((a for a in p.sent if a.method == "POST"), key=lambda a: a.body["displayName"])
    assert [a.headers["opc-retry-token"] for a in sent] == ["tok-0", "tok-1"]
    names = [a.body.pop("displayName") for a in sent]
    assert names == ["fleetd-tok-0", "fleetd-tok-1"]
    assert sent[0].body == sent[1].body
    body = sent[0].body
    assert base64.b64decode(body["metadata"].pop("user_data")).decode() == spec.user_data
    assert body == {
        "availabilityDomain": FULL,
        "compartmentId": COMPARTMENT,
        "shape": TYPE,
        "faultDomain": "FAULT-DOMAIN-2",
        "freeformTags": {
            "fleetd-image": "base@1.0.0",
            "fleetd-cell": "cell",
            "fleetd-pool": "train",
            "fleetd-token": "tok",
            "team": "red",
        },
        "definedTags": {"Ops": {"Cost": "1"}},
        "metadata": {"ssh_authorized_keys": "ssh-ed25519 A"},
        "createVnicDetails": {
            "subnetId": SUBNET,
            "assignPublicIp": False,
            "nsgIds": ["ocid1.networksecuritygroup.oc1.phx.g"],
        },
        "sourceDetails": {"sourceType": "image", "imageId": IMAGE, "bootVolumeSizeInGBs": 200},
        "instanceOptions": {"areLegacyImdsEndpointsDisabled": True},
        "computeClusterId": "ocid1.computecluster.oc1.phx.c",
    }
    assert len([a for a in p.sent if a.what == "availabilityDomains"]) == 1


def test_domains_with_the_tenancys_prefix_need_no_call() -> None:
    regions = {REGION: oci.Region(availability_domains=[FULL], subnet=SUBNET)}
    p = Canned(lambda _: (200, described(IDENT)), regions=regions)
    (made,) = p.run(create)
    assert (made.ref, [a.what for a in p.sent]) == (ref(), ["instances"])
    missing = Offer("oci", REGION, "PHX-AD-9", TYPE)
    error = Canned(lambda _: (200, {})).error(lambda x: x.create(launch("t", offer=missing)))
    assert type(error) is InvalidRequest
    assert "there are: Uocm:PHX-AD-1, Uocm:PHX-AD-2" in error.message


@pytest.mark.parametrize(
    "over",
    [
        {"offer": offer(METAL, Market.SPOT)},
        {"offer": offer(market=Market.RESERVED)},
        {"tags": {f"k{n}": "v" for n in range(7)}},
        {"tags": {"a.b": "v"}},
        {"tags": {"k": "v" * 257}},
        {"user_data": "x" * 24_000},
    ],
)
def test_what_oracle_would_refuse_is_not_sent(over: dict[str, Any]) -> None:
    p = Canned(lambda _: (200, described(IDENT)))
    assert type(p.error(lambda x: x.create(launch("tok", **over)))) is InvalidRequest
    assert [a.what for a in p.sent] == ["availabilityDomains"]


def test_markets() -> None:
    """Preemptible VMs only; reserved by the reservation's OCID."""
    region = oci.Region(
        availability_domains=[ZONE], subnet=SUBNET, capacity_reservations={METAL: "ocid1.r"}
    )

    def body(shape: str, market: Market) -> dict[str, Any]:
        spec = launch("tok", offer=offer(shape, market))
        return launch_body(spec, COMPARTMENT, FULL, region, oci.Machine(boot_volume_gb=0))

    action = {"type": "TERMINATE", "preserveBootVolume": False}
    spot = body(TYPE, Market.SPOT)
    assert spot["preemptibleInstanceConfig"] == {"preemptionAction": action}
    assert "bootVolumeSizeInGBs" not in spot["sourceDetails"]
    assert body(METAL, Market.RESERVED)["capacityReservationId"] == "ocid1.r"


def test_tokens_and_names() -> None:
    """The same for the same index, within Oracle's 64 characters, never shared."""
    long = launch("t" * 70, 3)
    tokens = [retry_token(long, n) for n in range(3)]
    assert {len(t) for t in tokens} == {64}
    assert len(set(tokens)) == 3 and tokens == [retry_token(long, n) for n in range(3)]
    assert len(name_of(launch("t" * 300), 0)) == 255


@pytest.mark.parametrize(
    ("configured", "zone"),
    [("AD-1", "AD-1"), ("PHX-AD-1", "PHX-AD-1"), (FULL, "PHX-AD-1"), ("AD-2", "PHX-AD-1")],
)
def test_zones_come_back_as_they_were_offered(configured: str, zone: str) -> None:
    region = oci.Region(availability_domains=[configured], subnet=SUBNET)
    assert zone_of(FULL, region) == zone


def test_offers_by_price_in_the_configured_domains() -> None:
    """Bare metal on demand only; a region that the price table does not know is not offered."""
    there = oci.Region(availability_domains=["PHX-AD-1", OTHER], subnet=SUBNET)
    found = Canned(lambda _: (200, {}), regions={REGION: there}).run(
        lambda p: p.offers(Need("H100", 8, frozenset(Market)))
    )
    assert [(o.zone, o.market, o.price_usd_hour) for o in found] == [(ZONE, Market.ON_DEMAND, 80.0)]


def test_a_region_that_is_not_configured() -> None:
    where = Offer("oci", FAR, "AD-1", TYPE)
    p = Canned(lambda _: (200, []))
    for work in (
        lambda x: x.create(launch("tok", offer=where)),
        lambda x: x.delete([InstanceRef("oci", FAR, "AD-1", IDENT)]),
    ):
        assert type(p.error(work)) is InvalidRequest


def test_settings() -> None:
    """OCIDs of the right kind; emulators on this machine only; one endpoint for one region."""
    good = oci_settings("http://127.0.0.1:4580")
    raw = good.model_dump(mode="json")
    assert registry.parse(raw) == good
    assert registry.died_as("oci", "OutOfHostCapacity") is InsufficientCapacity
    assert set(DIED) <= set(CODES)
    two = {**raw["regions"], FAR: raw["regions"][REGION]}
    for wrong in (
        {"tenancy": "ocid1.user.oc1..x"},
        {"compartment": "x"},
        {"regions": {}},
        {"endpoint": "https://iaas.example.com"},
        {"instance_principal": True},
        {"regions": two, "endpoint": "http://127.0.0.1:4580"},
        {"regions": {REGION: {"availability_domains": ["AD-1"], "subnet": "x"}}},
    ):
        with pytest.raises(Exception, match="providers"):
            registry.parse(raw | wrong)
    assert registry.parse(raw | {"compartment": TENANCY})


# -- lists ----------------------------------------------------------------------------------------


def test_a_listing_follows_every_token_and_never_trusts_the_page_size() -> None:
    """PC-136, PC-190: 2,500 instances; pages of any length, an empty one in the middle too."""
    pages = [range(250), range(250, 251), range(0), range(251, 2500)]

    def script(asked: Asked) -> Said:
        n = int(asked.query.get("page", "0"))
        assert (asked.query["compartmentId"], asked.query["limit"]) == (COMPARTMENT, "250")
        head = {"opc-next-page": str(n + 1)} if n + 1 < len(pages) else {}
        strangers = [described("other", freeformTags={"fleetd-cell": "else"}),
                     described("bare", freeformTags=None)]  # fmt: skip
        return 200, [*strangers, *(described(f"i-{k}") for k in pages[n])], head

    assert len({i.ref for i in Canned(script).run(everything)}) == 2500


def test_a_failing_page_fails_the_list() -> None:
    """PC-188: never a short answer; and one that has no end is no answer."""

    def second(asked: Asked) -> Said:
        if "page" in asked.query:
            return refusal(503, "ServiceUnavailable")
        return 200, [described("i-1")], {"opc-next-page": "more"}

    assert type(Canned(second).error(everything)) is Unavailable
    again = Canned(lambda _: (200, [], {"opc-next-page": "again"})).error(everything)
    assert again.code == "EndlessListing"


@pytest.mark.parametrize("state", ["PROVISIONING", "STARTING", "RUNNING", "MOVING",
                                   "CREATING_IMAGE", "STOPPING", "STOPPED", "TERMINATING",
                                   "SOMETHING_NEW"])  # fmt: skip
def test_states_that_exist(state: str) -> None:
    (found,) = Canned(lambda _: (200, [described(IDENT, state)])).run(everything)
    assert found.exists
    assert found.phase is (Phase.PENDING if "NEW" in state else found.phase)


def test_an_incomplete_description_is_pending() -> None:
    """PC-166: no state, no time, no image yet."""
    bare = {"id": IDENT, "freeformTags": {"fleetd-cell": "cell"}}
    (found,) = Canned(lambda _: (200, [bare])).run(everything)
    assert (found.phase, found.created_at, found.image_id) == (Phase.PENDING, 0.0, "")


def work_script(works: list[dict[str, Any]], errors: Any = (), **over: Any) -> Any:
    """One terminated instance with these work requests."""

    def script(asked: Asked) -> Said:
        if asked.what == "workRequests":
            assert asked.query["resourceId"] == IDENT
            return 200, works
        if asked.what.endswith("/errors"):
            return 200, list(errors)
        return 200, [described(IDENT, "TERMINATED", **over)]

    return script


FAILED = {"id": "w-1", "operationType": "LaunchInstance", "status": "FAILED"}
SPOT = {"preemptibleInstanceConfig": {"preemptionAction": {"type": "TERMINATE"}}}


@pytest.mark.parametrize(
    ("code", "message", "outcome"),
    [
        ("InternalError", "Out of host capacity.", Outcome.INSUFFICIENT_CAPACITY),
        ("OutOfHostCapacity", "none", Outcome.INSUFFICIENT_CAPACITY),
        ("LimitExceeded", "gpu-count", Outcome.QUOTA_EXCEEDED),
        ("SomethingNew", "the words", None),
    ],
)
def test_an_accepted_launch_that_died_says_why(code: str, message: str, outcome: Any) -> None:
    """PC-166: two reads, once; the third listing asks nothing more."""
    p = Canned(work_script([FAILED], [{"code": code, "message": message}]))

    async def thrice(provider: oci.Oci) -> Any:
        return [await everything(provider) for _ in range(3)]

    for (found,) in p.run(thrice):
        assert (found.phase, found.code, found.message) == (Phase.TERMINATED, code, message)
        assert found.died is outcome
        assert not found.preempted
    assert len([a for a in p.sent if a.what.startswith("workRequests")]) == 2


def test_a_failed_work_request_without_errors_is_a_failure() -> None:
    (found,) = Canned(work_script([FAILED])).run(everything)
    assert (found.code, found.message) == ("FAILED", "LaunchInstance failed")


@pytest.mark.parametrize(
    ("works", "over", "code"),
    [
        ([{"id": "w", "operationType": "LaunchInstance", "status": "SUCCEEDED"}], SPOT,
         "Preempted"),
        ([{"id": "w", "operationType": "TerminateInstance", "status": "SUCCEEDED"}], SPOT, ""),
        ([{"id": "w", "operationType": "LaunchInstance", "status": "SUCCEEDED"}], {}, ""),
        ([], SPOT, ""),
    ],
)  # fmt: skip
def test_preemption_is_an_end_that_nobody_asked_for(works: Any, over: Any, code: str) -> None:
    (found,) = Canned(work_script(works, **over)).run(everything)
    assert (found.code, found.preempted) == (code, bool(code))


def test_reasons_that_cannot_be_read_hide_no_instance() -> None:
    """And are read later; many at once are read a few at a time."""
    asked_for: list[str] = []

    def script(asked: Asked) -> Said:
        if asked.what == "workRequests":
            asked_for.append(asked.query["resourceId"])
            return refusal(429, "TooManyRequests") if len(asked_for) <= 3 else (200, [FAILED])
        if asked.what.endswith("/errors"):
            return 200, [{"code": "X", "message": "y"}]
        return 200, [described(f"i-{n}", "TERMINATED") for n in range(5)]

    async def thrice(provider: oci.Oci) -> Any:
        return [[i.code for i in await everything(provider)].count("X") for _ in range(3)]

    assert Canned(script, reasons_at_once=3).run(thrice) == [0, 3, 5]


def test_what_we_deleted_or_saw_running_needs_no_reason() -> None:
    states = iter(["RUNNING", "TERMINATED"])

    def script(asked: Asked) -> Said:
        if asked.method == "DELETE":
            return 204, None
        assert asked.what == "instances"
        return 200, [described(IDENT, next(states)), described("i-2", "TERMINATED")]

    async def work(provider: oci.Oci) -> Any:
        await provider.delete([ref("i-2"), ref("i-2")])
        return await everything(provider), await everything(provider)

    p = Canned(script)
    _, later = p.run(work)
    assert [(i.exists, i.code) for i in later] == [(False, ""), (False, "")]
    assert [a.method for a in p.sent] == ["DELETE", "GET", "GET"]


def test_maintenance_is_announced() -> None:
    """A reboot that Oracle has planned; the next listing without it takes it back."""
    due = iter([{"timeMaintenanceRebootDue": "2026-12-03T00:00:00.000Z"}, {}])

    async def work(provider: oci.Oci) -> Any:
        await everything(provider)
        told = await provider.notices()
        await everything(provider)
        return told, await provider.notices()

    (one,), later = Canned(lambda _: (200, [described(IDENT, **next(due))])).run(work)
    assert (one.ref, one.kind, one.at, later) == (ref(), "maintenance", 1_796_256_000.0, [])
