"""A simulated world of four clouds, its faults, and the invariants that must hold in it."""
