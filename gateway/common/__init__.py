"""Helpers without a domain: timestamps and ids."""
