"""The blocks of a prompt that several choices of one call have in common."""

from dataclasses import dataclass


@dataclass(slots=True)
class SharedPrompt:
    """`requests` of one class, whose block tables all begin with `blocks`, hold them together: one reference each, by
    the number `holder`, until the last of them has left. So a fork costs what its own blocks cost, however long the
    prompt is."""

    blocks: list[int]
    rank: int
    holder: int
    requests: int = 1
