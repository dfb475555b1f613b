"""Errors of adapters."""


class UnsupportedAdapter(ValueError):
    """An adapter's files cannot be served with their base model. The message names the key or the tensor."""
