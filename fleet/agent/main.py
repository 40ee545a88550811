"""fleet-agent's command line.

The agent itself is not part of this version: the program says so and ends with 69 (unavailable),
so that an image that already ships it fails where somebody sees it. What an agent must say is
docs/agent-protocol.md; the simulated nodes speak all of it.
"""

from __future__ import annotations

import sys

UNAVAILABLE = 69


def main() -> int:
    """Say what is missing, on stderr."""
    print("fleet-agent: the agent is not part of this version of fleetd", file=sys.stderr)
    print("  try   docs/agent-protocol.md has all that a node must say", file=sys.stderr)
    return UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
