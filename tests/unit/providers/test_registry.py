"""The file name is the key; nothing is imported before it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import providers
from fleet.clock import LoopClock, SystemChance
from fleet.errors import InputError, InsufficientCapacity, NotFound
from providers import aws, registry

AWS: dict[str, Any] = {"kind": "aws", "regions": {"us-east-1": {}}}


def test_kinds_are_files_with_settings() -> None:
    """Found without a list."""
    found = registry.kinds()
    assert "aws" in found
    assert not {"base", "wrap", "pace", "pool", "catalog", "ec2", "registry"} & set(found)
    assert all((Path(providers.__path__[0]) / f"{kind}.py").is_file() for kind in found)


def test_unknown_kind_names_the_near_ones() -> None:
    """A typo and its mending."""
    with pytest.raises(NotFound, match="did you mean aws"):
        registry.cloud("awss")
    with pytest.raises(InputError, match=r"providers\[0\]\.kind.*awss"):
        registry.parse({"kind": "awss"}, "providers[0]")
    with pytest.raises(InputError, match=r"kind: missing \(one of"):
        registry.parse({})


def test_every_wrong_field_is_named() -> None:
    """All problems at once, each with its place."""
    raw = AWS | {"max_threads": 0, "colour": "red", "regions": {"us-east-1": {"zone": {}}}}
    with pytest.raises(InputError) as e:
        registry.parse(raw, "providers.aws")
    assert {p.where for p in e.value.problems} == {
        "providers.aws.max_threads",
        "providers.aws.colour",
        "providers.aws.regions.us-east-1.zone",
    }


@pytest.mark.parametrize(
    "more",
    [
        {"emulator_credentials": True},
        {"emulator_credentials": True, "endpoint_url": "https://ec2.example.com"},
        {"regions": {}},
        {"name": "Not A Name"},
        {"rates": {"erase": []}},
        {"page_size": 5000},
    ],
)
def test_bad_settings_are_refused(more: dict[str, Any]) -> None:
    """Made-up credentials never leave this machine; bounds hold."""
    with pytest.raises(InputError):
        registry.parse(AWS | more)


def test_open_gives_a_wrapped_provider() -> None:
    """Ready, without a call made."""
    p = registry.open_provider(
        registry.parse(AWS | {"name": "aws-prod"}), clock=LoopClock(), chance=SystemChance()
    )
    assert p.name == "aws-prod"


def test_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback from deep inside."""
    for missing in ("no_such_sdk", "no_such.sdk"):
        monkeypatch.setattr(aws, "SDK", missing)
        with pytest.raises(InputError, match=r"pip install 'fleetd\[aws\]'"):
            registry.open_provider(registry.parse(AWS), clock=LoopClock(), chance=SystemChance())


def test_no_sdk_is_imported_before_it_is_needed() -> None:
    """Not by importing the adapter, not by opening the provider."""
    code = (
        "import sys\n"
        "from fleet.clock import LoopClock, SystemChance\n"
        "from providers import registry\n"
        "registry.open_provider(registry.parse({'kind': 'aws', 'regions': {'r': {}}}),\n"
        "    clock=LoopClock(), chance=SystemChance())\n"
        "print(sorted({'boto3', 'botocore', 'google', 'azure', 'oci'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_a_death_after_acceptance_is_a_refusal_by_the_clouds_own_code() -> None:
    """Capacity that was promised and not there rests the offer like a refusal would."""
    died = registry.died_as("aws", "Server.InsufficientInstanceCapacity")
    assert died is InsufficientCapacity
    assert registry.died_as("aws", "Client.UserInitiatedShutdown") is None
