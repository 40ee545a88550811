"""Policies in YAML: schema, loading with exact error positions, diff."""
