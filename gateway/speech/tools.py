"""Declared tools, and the tools that an answer may or must call."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client can run. `parameters`: JSON schema of the arguments object. `param`: the parameter of
    the body that has the schema, for errors."""

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
    """The tools of a request. `named`: the tool that must be called, with `choice` REQUIRED. `param`: the parameter of
    the body, for errors. `is_older_form`: they were declared as functions, and so are the calls of the answer."""

    tools: tuple[Tool, ...]
    choice: ToolChoice = ToolChoice.AUTO
    named: str | None = None
    parallel: bool = True
    param: str = "tools"
    is_older_form: bool = False

    @property
    def shown(self) -> tuple[Tool, ...]:
        """The tools that the prompt contains: none if the answer must call none."""
        return () if self.choice is ToolChoice.NONE else self.tools

    @property
    def most_calls(self) -> int | None:
        """Maximum number of calls of an answer; None: unlimited."""
        return None if self.parallel and self.named is None else 1
