"""``Image``: a family of machine images, its immutable versions, and their ids in each cloud.

Invariant: an artifact id names one thing for ever: aliases and "newest of" forms are refused,
since a rollout that changes under our feet cannot be judged.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from policies.schema.base import (
    CloudWord,
    Document,
    Dotted,
    Name,
    Strict,
    Version,
    check_text,
    refuse,
)
from policies.text import quoted

#: Region of artifacts that every region of a provider can use.
GLOBAL: Final = "global"
#: Shapes of artifact ids (clouds.md section 6). The cloud is told from the id's own form, since a
#: provider's name is free.
SHAPES: Final = {
    "aws": re.compile(r"ami-([0-9a-f]{8}|[0-9a-f]{17})"),
    "gcp": re.compile(
        r"projects/[a-z0-9][a-z0-9:.-]{2,60}/global/images/[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
    ),
    "azure": re.compile(
        r"/subscriptions/[0-9a-fA-F-]{36}/resourceGroups/[\w.()-]{1,90}"
        r"/providers/Microsoft\.Compute/galleries/[\w.]{1,80}/images/[\w.-]{1,80}"
        r"/versions/[0-9]+\.[0-9]+\.[0-9]+"
    ),
    "oci": re.compile(r"ocid1\.image\.oc[0-9]{1,2}\.[a-z0-9-]*\.[a-z0-9]{8,80}"),
}
#: Forms that clouds accept and that change: family pointers, parameters, newest version.
_ALIASES: Final = (
    (re.compile(r"resolve:ssm:.*"), "an SSM parameter"),
    (re.compile(r"projects/.*/global/images/family/.*"), "an image family"),
    (re.compile(r"/subscriptions/.*/versions/latest", re.IGNORECASE), "the newest version"),
    (re.compile(r"(?:.*[/:@])?latest", re.IGNORECASE), "the newest version"),
)


def _check_id(value: str) -> str:
    check_text(value)
    if len(value) > 400:
        raise refuse("an artifact id is longer than 400 characters", "copy the id from the cloud")
    for pattern, what in _ALIASES:
        if pattern.fullmatch(value):
            raise refuse(
                f"{quoted(value)} names {what}, which changes", "write the id of one fixed image"
            )
    if cloud_of(value) is None:
        raise refuse(
            f"{quoted(value)} is not an image id of any cloud",
            "write ami-…, projects/…/global/images/…, /subscriptions/…/versions/1.2.3 "
            "or ocid1.image.…",
        )
    return value


def cloud_of(artifact_id: str) -> str | None:
    """The kind of cloud (aws, gcp, azure, oci) an artifact id is from, or None."""
    for cloud, shape in SHAPES.items():
        if shape.fullmatch(artifact_id):
            return cloud
    return None


class Artifact(Strict):
    """Where one version lies."""

    provider: Name
    """Name of a configured provider account."""
    region: CloudWord
    """Region in which the id is valid; global where an image serves all regions."""
    id: Annotated[str, AfterValidator(_check_id)]
    """The cloud's own id of one fixed image."""


class ImageVersion(Strict):
    """One immutable build."""

    version: Version
    """Name of the version, never an alias."""
    driver: Dotted | None = None
    """NVIDIA driver inside."""
    cuda: Dotted | None = None
    """CUDA version inside."""
    kernel: Annotated[str, AfterValidator(check_text), Field(max_length=80)] | None = None
    """Linux kernel inside."""
    build: Annotated[str, AfterValidator(check_text), Field(max_length=120)] | None = None
    """Build id or commit, for people."""
    artifacts: Annotated[tuple[Artifact, ...], Field(min_length=1, max_length=400, strict=False)]
    """One id per provider and region."""

    def artifact(self, provider: str, region: str) -> str | None:
        """The id of this version in (``provider``, ``region``), or None.

        An artifact of region ``global`` (Google's images) serves every region of its provider
        that has none of its own.
        """
        ids = {a.region: a.id for a in self.artifacts if a.provider == provider}
        return ids.get(region, ids.get(GLOBAL))


class ImageSpec(Strict):
    """The versions of a family."""

    versions: Annotated[tuple[ImageVersion, ...], Field(min_length=1, max_length=200, strict=False)]
    """Every version that a pool or a rollout may name."""

    @model_validator(mode="after")
    def _versions_differ(self) -> ImageSpec:
        names = [v.version for v in self.versions]
        for i, name in enumerate(names):
            if name in names[:i]:
                what = f"version {quoted(name)} is written twice"
                raise refuse(what, "keep one of them", ("versions", i, "version"))
        return self

    def version(self, name: str) -> ImageVersion | None:
        """The version called ``name``, or None."""
        return next((v for v in self.versions if v.version == name), None)


class Image(Document):
    """A family of machine images; its name is the family."""

    kind: Literal["Image"]
    """Kind of object."""
    spec: ImageSpec
    """The versions."""
