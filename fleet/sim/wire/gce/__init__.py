"""The parts of the Compute Engine skin (fleet/sim/wire/gcp.py)."""
