"""``fleetd check-config``: is this file right, and with ``--online``, do the clouds let us in?

Invariant: nothing is written, launched or deleted; one list per provider is all that is asked.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fleet import opening
from fleet.clock import LoopClock, SystemChance
from fleet.config import Settings
from fleet.errors import ProviderError, Unauthorized
from fleet.model import Owner
from providers.base import Provider

OK, REFUSED = 0, 1


def main(path: Path, *, online: bool) -> int:
    """0 when the file is right (and every cloud answered); raises InputError when it is not."""
    settings = opening.configuration(path)
    names = ", ".join(settings.provider_names) or "none"
    print(f"{path}: ok (cell {settings.cell}, providers: {names})")
    return asyncio.run(_online(settings)) if online else OK


async def _online(settings: Settings) -> int:
    clock = LoopClock()
    clouds = opening.providers(settings, clock, SystemChance(), None)
    results = await asyncio.gather(
        *(_ask(name, provider, settings, clock) for name, provider in clouds.items())
    )
    for provider in clouds.values():
        await provider.aclose()
    return OK if all(results) else REFUSED


async def _ask(name: str, provider: Provider, settings: Settings, clock: LoopClock) -> bool:
    start = clock.monotonic()
    try:
        found = [i async for i in provider.list(Owner(settings.cell))]
    except ProviderError as error:
        print(f"error: {name} refuses to list instances", file=sys.stderr)
        print(f"  why   {error}", file=sys.stderr)
        if isinstance(error, Unauthorized):
            print("  try   check the credentials that this user and host have, and the permissions "
                  "in docs/clouds.md", file=sys.stderr)  # fmt: skip
        else:
            print("  try   check the regions and the network, then ask again", file=sys.stderr)
        print(f"  code  {error.reason}   (exit {REFUSED})", file=sys.stderr)
        return False
    regions = sorted({i.ref.region for i in found})
    where = f" in {', '.join(regions)}" if regions else ""
    seconds = clock.monotonic() - start
    print(f"{name}: {len(found)} instances of cell {settings.cell}{where}, {seconds:.1f} s")
    return True
