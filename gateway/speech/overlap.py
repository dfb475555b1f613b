"""Whether a text that has not ended may be about to say something."""


def overlap(text: str, marker: str) -> int:
    """Length of the longest end of the text that the marker begins with, short of all of it."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)
