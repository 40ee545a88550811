"""What one policy must be true of another, of the daemon's providers and of the clouds' types.

Invariant: pure; reports every problem it can see and never two for one cause: what refers to a
document that is itself refused is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fleet.model import Market
from policies.document import Doc, PolicyProblem, Steps
from policies.policyset import DEFAULT_HEALTH, PolicySet
from policies.schema import GPUS, Image, Policy, Pool
from policies.schema.image import GLOBAL, SHAPES, cloud_of
from policies.schema.offer import OfferSpec, bare_metal
from policies.text import did_you_mean, nearest, quoted

#: Instance type → (GPU model, GPUs) of one provider; None: the types are not known (yet).
Types = Mapping[str, tuple[str, int]]


def _no_types(_: str) -> Types | None:
    return None


@dataclass(frozen=True, slots=True)
class Known:
    """What the daemon knows of the world.

    ``providers`` maps configured provider names to their kind (aws, gcp, azure, oci, or anything
    else for others); None accepts every name. ``types`` gives a provider's instance types.
    """

    providers: Mapping[str, str] | None = None
    types: Callable[[str], Types | None] = _no_types

    def kind_of(self, provider: str) -> str:
        """Kind of the cloud behind ``provider``: as configured, else read from its name."""
        if self.providers is not None:
            return self.providers.get(provider, "")
        return provider.partition("-")[0]


ANYTHING: Final = Known()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy and the document it came from."""

    doc: Doc
    policy: Policy


Found = Iterator[PolicyProblem]


def check(
    loaded: list[Loaded], failed: frozenset[tuple[str, str]], applied: PolicySet, known: Known
) -> list[PolicyProblem]:
    """Every problem between ``loaded``, ``applied`` and ``known``.

    ``failed`` are kind and name of documents that were refused already.
    """
    found = list(_duplicates(loaded))
    after = PolicySet.of([*applied, *(item.policy for item in loaded)])
    for item in loaded:
        if isinstance(item.policy, Pool):
            found += _Check(item.doc, item.policy, after, failed, known).all()
        elif isinstance(item.policy, Image):
            found += _image(item.doc, item.policy, known)
            found += _immutable(item.doc, item.policy, applied, after)
    return found


def _duplicates(loaded: list[Loaded]) -> Found:
    first: dict[tuple[str, str], Doc] = {}
    for item in loaded:
        name = item.policy.metadata.name
        key = (item.policy.kind, name)
        if key in first:
            place = first[key].where(("metadata", "name"))
            what = f"{key[0]} {quoted(name)} is defined twice, first at {place}"
            yield item.doc.problem(("metadata", "name"), what, "rename or remove one of them")
        else:
            first[key] = item.doc


def _image(doc: Doc, image: Image, known: Known) -> Found:
    for i, version in enumerate(image.spec.versions):
        seen: dict[tuple[str, str], int] = {}
        for j, artifact in enumerate(version.artifacts):
            path: Steps = ("spec", "versions", i, "artifacts", j)
            yield from _provider(doc, (*path, "provider"), artifact.provider, known)
            place = (artifact.provider, artifact.region)
            if place in seen:
                line = doc.at((*path[:-1], seen[place], "region"))[0]
                what = f"a second artifact for {' '.join(place)}, first on line {line}"
                yield doc.problem((*path, "region"), what, "keep one of them")
            seen.setdefault(place, j)
            kind, cloud = known.kind_of(artifact.provider), cloud_of(artifact.id)
            if kind in SHAPES and cloud != kind:
                what = f"{quoted(artifact.id)} is an image of {cloud}, not of {kind}"
                yield doc.problem((*path, "id"), what, "copy the id from the right cloud")


def _immutable(doc: Doc, image: Image, applied: PolicySet, after: PolicySet) -> Found:
    """Versions that are applied keep their artifact ids; versions in use stay."""
    family = image.metadata.name
    before = applied.images.get(family)
    if before is None:
        return
    for i, version in enumerate(image.spec.versions):
        old = before.spec.version(version.version)
        for j, artifact in enumerate(version.artifacts if old else ()):
            was = {(a.provider, a.region): a.id for a in old.artifacts} if old else {}
            had = was.get((artifact.provider, artifact.region), artifact.id)
            if had != artifact.id:
                what = f"{family}@{version.version} is applied with {quoted(had)} here"
                path: Steps = ("spec", "versions", i, "artifacts", j, "id")
                yield doc.problem(path, what, "add a new version: applied ones never change")
    for pool in after.pools.values():
        name = pool.spec.image_version
        gone = image.spec.version(name) is None and before.spec.version(name) is not None
        if (
            pool.spec.image_family == family
            and gone
            and pool == applied.pools.get(pool.metadata.name)
        ):
            what = f"version {quoted(name)} is removed, but pool {pool.metadata.name} uses it"
            yield doc.problem(("spec", "versions"), what, "move the pool first")


def _provider(doc: Doc, path: Steps, name: str, known: Known) -> Found:
    if known.providers is not None and name not in known.providers:
        fix = did_you_mean(name, known.providers) or "configure a provider first"
        yield doc.problem(path, f"unknown provider {quoted(name)}", fix)


@dataclass(frozen=True, slots=True)
class _Check:
    """The checks of one pool."""

    doc: Doc
    pool: Pool
    after: PolicySet
    failed: frozenset[tuple[str, str]]
    known: Known

    def all(self) -> Found:
        """Every problem of the pool."""
        yield from self._health()
        yield from self._image()
        yield from self._repeated()
        for i, offer in enumerate(self.pool.spec.offers):
            path: Steps = ("spec", "offers", i)
            wrong = list(_provider(self.doc, (*path, "provider"), offer.provider, self.known))
            yield from wrong
            if not wrong:
                yield from self._type(path, offer)
                yield from self._market(path, offer)

    def _health(self) -> Found:
        name = self.pool.spec.health
        there = name in self.after.health or name == DEFAULT_HEALTH.metadata.name
        if not there and ("HealthPolicy", name) not in self.failed:
            what = f"unknown health policy {quoted(name)}"
            fix = did_you_mean(name, {*self.after.health, DEFAULT_HEALTH.metadata.name})
            yield self.doc.problem(("spec", "health"), what, fix)

    def _image(self) -> Found:
        spec = self.pool.spec
        path: Steps = ("spec", "image")
        if ("Image", spec.image_family) in self.failed:
            return
        image = self.after.images.get(spec.image_family)
        if image is None:
            fix = did_you_mean(spec.image_family, self.after.images) or "apply an Image first"
            yield self.doc.problem(path, f"unknown image family {quoted(spec.image_family)}", fix)
            return
        version = image.spec.version(spec.image_version)
        if version is None:
            what = f"image {spec.image_family} has no version {quoted(spec.image_version)}"
            fix = did_you_mean(spec.image_version, (v.version for v in image.spec.versions))
            yield self.doc.problem(path, what, fix)
            return
        for i, offer in enumerate(spec.offers):
            if version.artifact(offer.provider, offer.region) is None:
                what = f"image {spec.image} has no artifact in {offer.provider} {offer.region}"
                have = sorted(
                    a.region
                    for a in version.artifacts
                    if a.provider == offer.provider and a.region != GLOBAL
                )
                fix = f"add one to Image {spec.image_family}"
                if have:
                    fix += f", or use {', '.join(have[:5])}"
                yield self.doc.problem(("spec", "offers", i, "region"), what, fix)

    def _repeated(self) -> Found:
        seen: dict[str, int] = {}
        spec = self.pool.spec
        for i, offer in enumerate(spec.offers):
            for expanded in offer.expand(spec.gpu, spec.gpus_per_node):
                if expanded.key in seen:
                    line = self.doc.at(("spec", "offers", seen[expanded.key], "provider"))[0]
                    what = f"offer {expanded.key} is written twice, first on line {line}"
                    yield self.doc.problem(("spec", "offers", i), what, "keep one of them")
                seen.setdefault(expanded.key, i)

    def _type(self, path: Steps, offer: OfferSpec) -> Found:
        types = self.known.types(offer.provider)
        if types is None:
            return
        spec = self.pool.spec
        wanted = (spec.gpu, spec.gpus_per_node)
        fitting = sorted(name for name, has in types.items() if has == wanted)
        at = (*path, "type")
        if offer.type not in types:
            near = fitting if nearest(offer.type, fitting) else list(types)
            fix = did_you_mean(offer.type, near)
            fix = fix if nearest(offer.type, near) else _types_fix(fitting)
            what = f"unknown instance type {quoted(offer.type)} of {offer.provider}"
            yield self.doc.problem(at, what, fix)
            return
        has = types[offer.type]
        if has != wanted:
            what = f"{offer.type} has {_gpus(has)}, the pool wants {_gpus(wanted)}"
            yield self.doc.problem(at, what, _types_fix(fitting))

    def _market(self, path: Steps, offer: OfferSpec) -> Found:
        kind = self.known.kind_of(offer.provider)
        if offer.market is Market.SPOT and kind == "oci" and bare_metal(offer.type):
            # clouds.md 6: preemptible capacity is for VM shapes only.
            what = f"{offer.type} cannot be bought as spot: OCI has preemptible VMs only"
            yield self.doc.problem((*path, "market"), what, "use on_demand or a VM shape")
        if offer.market is Market.ON_DEMAND and kind == "gcp" and offer.type in _GCP_NO_ON_DEMAND:
            what = f"{offer.type} cannot be bought on demand"
            yield self.doc.problem((*path, "market"), what, "use spot or reserved")


#: Smaller A3 High shapes are sold as spot or flex start only (clouds.md section 6).
_GCP_NO_ON_DEMAND: Final = frozenset({"a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"})


def _gpus(has: tuple[str, int]) -> str:
    gpu, count = has
    return f"{count} × {gpu if gpu in GPUS else quoted(gpu)}"


def _types_fix(fitting: list[str]) -> str:
    return f"use {' or '.join(fitting[:5])}" if fitting else "no type of this provider fits"
