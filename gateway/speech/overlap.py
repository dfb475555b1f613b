"""Partial matches of a marker at the end of a text."""


def overlap(text: str, marker: str) -> int:
    """Length of the longest suffix of the text that is a proper prefix of the marker."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)
