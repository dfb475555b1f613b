"""The blocks of a prompt that several choices of one call share."""

from dataclasses import dataclass


@dataclass(slots=True)
class SharedPrompt:
    """Blocks with which the block tables of `requests` requests of one class begin.

    They have one reference in all, by the number `holder`, which is released with the last request. So the cost of a
    fork does not depend on the length of the prompt.
    """

    blocks: list[int]
    rank: int
    holder: int
    requests: int = 1
