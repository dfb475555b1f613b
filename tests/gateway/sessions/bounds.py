"""Bounds of a store of sessions that a test meets soon."""

SMALL = {"per_tenant": 3, "bytes_per_tenant": 100}
