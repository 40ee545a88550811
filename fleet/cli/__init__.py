"""Command lines: fleetd (the daemon) and fleetctl (for people)."""
