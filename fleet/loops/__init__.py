"""The loops: one periodic Task per file; each carries out what the pure modules decide."""
