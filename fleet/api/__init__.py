"""HTTP: agent routes over TCP, operator routes over a local Unix socket."""
