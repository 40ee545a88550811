"""Durable state: tables, the one async door, the only writers of node state, queries."""
