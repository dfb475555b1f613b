"""Shared helpers: timestamps and ids."""
