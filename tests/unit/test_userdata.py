"""User data: the same bytes for the same boot, read back whole, small enough for every cloud."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import InputError
from fleet.userdata import MAX_BYTES, PATH, BootData, parse, render

settings.register_profile("no_clock", deadline=None)
settings.load_profile("no_clock")

boots_st = st.builds(
    BootData, st.text(max_size=80), st.text(max_size=80), st.text(max_size=20),
    st.text(max_size=20), st.text(max_size=20),
)  # fmt: skip


@given(boot=boots_st)
def test_round_trip_and_the_same_bytes_again(boot: BootData) -> None:
    """An idempotent create must repeat the identical body."""
    text = render(boot)
    assert text == render(boot)
    assert parse(text) == boot


@given(boot=boots_st)
def test_cloud_init_reads_the_same(boot: BootData) -> None:
    document = yaml.safe_load(render(boot))
    (file,) = document["write_files"]
    assert (file["path"], file["permissions"]) == (PATH, "0600")
    assert BootData(**json.loads(file["content"])) == boot
    assert document["runcmd"] == [["systemctl", "enable", "--now", "fleet-agent"]]
    assert render(boot).startswith("#cloud-config\n")


def test_too_long_is_refused_and_the_limit_fits() -> None:
    spare = MAX_BYTES - len(render(BootData("", "", "", "")))
    assert len(render(BootData("x" * spare, "", "", "")).encode()) == MAX_BYTES
    with pytest.raises(InputError, match="at most"):
        render(BootData("x" * (spare + 1), "", "", ""))


@pytest.mark.parametrize("text", [
    "", "#cloud-config\n", "#!/bin/sh\n", render(BootData("a", "b", "c", "d"))[:-1],
    render(BootData("a", "b", "c", "d")).replace("{", "", 1),
    render(BootData("a", "b", "c", "d")).replace('"pool"', '"pond"'),
    render(BootData("a", "b", "c", "d")).replace("{", "[{").replace("}", "}]"),
])  # fmt: skip
def test_what_fleetd_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse(text)
