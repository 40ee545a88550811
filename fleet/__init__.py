"""fleetd: keeps a fleet of GPU nodes alive, healthy and cheap on four clouds."""

__version__ = "0.1.0"
