"""Errors of the engine, for callers of any layer."""


class InvalidParameter(ValueError):
    """A sampling parameter out of its range. `param` names the field as the OpenAI API spells it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class UnservableRequest(ValueError):
    """A request that no amount of waiting would make servable: empty, or longer than the model's window."""


class EngineError(RuntimeError):
    """A request failed inside the engine, or the engine went away under it."""


class GrammarGaveUp(EngineError):
    """What a caller asked an answer to look like cannot be followed to its end: it takes more states than a grammar may
    have, or allows no token. It will again, however often it is tried. `param` names the field that it came from."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class TooManyGrammars(RuntimeError):
    """A tenant asks for more grammars than are compiled for it soon. It may ask again."""


class OutOfDeviceMemory(EngineError):
    """There was no room on the device for what a step needs. Nothing came of the step, and a smaller one may."""


class DeviceLost(EngineError):
    """The device failed, and will fail every step from now on: this process has lost it."""
