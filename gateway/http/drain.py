"""Whether this process is on its way out."""


class Drain:
    """`begun` turns True once and stays so: what runs may end, nothing new begins, and readiness is off.

    `begin` only sets a flag, so a signal handler may call it.
    """

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False

    def begin(self) -> None:
        self.begun = True
