"""Tools that a client declares, and which of them an answer may or must call."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client can run. `parameters` is the JSON schema of its arguments, an object's; `param` is the
    body's field with that schema, for errors."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]
    strict: bool = False
    param: str = "tools"


class ToolChoice(StrEnum):
    """Whether an answer calls a tool."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says of tools. `named` is the one that has to be called, with `choice` REQUIRED. `param` is the
    body's field, for errors."""

    tools: tuple[Tool, ...]
    choice: ToolChoice = ToolChoice.AUTO
    named: str | None = None
    parallel: bool = True
    param: str = "tools"

    @property
    def shown(self) -> tuple[Tool, ...]:
        """The tools that a model is told of: none where it is to call none."""
        return () if self.choice is ToolChoice.NONE else self.tools

    @property
    def most_calls(self) -> int | None:
        """How many an answer may make; None: any number."""
        return None if self.parallel and self.named is None else 1
