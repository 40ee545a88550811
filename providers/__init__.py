"""Cloud adapters: one file a cloud, one protocol, one wrapping."""
