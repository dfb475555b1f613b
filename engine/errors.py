"""Errors of the engine, for callers of any layer."""


class InvalidParameter(ValueError):
    """A request parameter is invalid. `param` is the field's name in the OpenAI API."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class UnservableRequest(ValueError):
    """A request that can never be served: empty, or longer than the model's context window."""


class EngineError(RuntimeError):
    """A request failed inside the engine, or the engine stopped."""


class EngineUnavailable(EngineError):
    """The engine cannot take requests at the moment. A later retry may succeed."""


class GrammarGaveUp(EngineError):
    """The answer's grammar cannot be followed to its end: it exceeds the parser's limits, or allows no token. A retry
    fails again. `param`: the field that holds the grammar."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class AdapterUnavailable(EngineError):
    """A request's adapter could not be loaded, or not in time. A later retry may succeed."""


class TooManyGrammars(RuntimeError):
    """A tenant has too many grammars queued for compilation. A later retry may succeed."""


class OutOfDeviceMemory(EngineError):
    """The device has no memory for a step. The step had no effect, and a smaller one may succeed."""


class DeviceLost(EngineError):
    """The device failed and every later step will fail; the process has to be replaced."""


class RankLost(DeviceLost):
    """A process that computes a part of the models has ended, or does not answer. The message names it; the engine
    ends."""
