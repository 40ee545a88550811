"""fleet-agent: runs on each node and stands alone; the standard library and pynvml only."""
