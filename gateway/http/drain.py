"""Whether this process is shutting down."""


class Drain:
    """`begun` turns True once and stays True: running requests finish, new ones are rejected, and readiness is off.

    `begin` only sets a flag, so a signal handler may call it.
    """

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False

    def begin(self) -> None:
        self.begun = True
