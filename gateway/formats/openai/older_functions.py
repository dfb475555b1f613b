"""OpenAI's older form of tools, which its clients deprecate and many programs still use: `functions` and
`function_call` in a chat's body, `function_call` in messages, and messages of the role `function`.

https://platform.openai.com/docs/api-reference/chat/create. They become tools, tool calls and messages of the role
`tool` at once; an answer has one call at most.
"""

from typing import Any

from gateway.formats.openai.tool_schema import MAX_TOOLS, read_function, require_own_names
from gateway.http.errors import invalid
from gateway.http.fields import Fields, unsupported_value
from gateway.speech.tools import ToolChoice, ToolUse

MODES = (ToolChoice.NONE, ToolChoice.AUTO)


def take_functions(fields: Fields) -> ToolUse | None:
    """Parse the functions; None where there are none.

    Raises:
        APIError: an invalid function or `function_call`, naming the member.
    """
    items = fields.array("functions", MAX_TOOLS) or []
    given = [Fields(item, f"{fields.path('functions')}[{i}]") for i, item in enumerate(items)]
    functions = tuple(read_function(each) for each in given)
    for each in given:
        each.finish({})
    require_own_names(functions)
    mode, path = fields.take("function_call"), fields.path("function_call")
    choice, named = ToolChoice.AUTO, None
    if isinstance(mode, str):
        if mode not in MODES:
            raise unsupported_value(path, mode, MODES)
        choice = ToolChoice(mode)
    elif mode is not None:
        stated = Fields(mode, path)
        choice, named = ToolChoice.REQUIRED, stated.required_string("name")
        if all(function.name != named for function in functions):
            raise invalid(stated.path("name"), f"The function in '{stated.path('name')}' is not in 'functions'.")
        stated.finish({})
    if not functions:
        if choice is ToolChoice.AUTO and mode is not None:
            raise invalid(path, f"'{path}' is only allowed when 'functions' are specified.")
        return None
    return ToolUse(functions, choice, named, parallel=False, param=fields.path("functions"), is_older_form=True)


class OlderCalls:
    """Gives the calls of a conversation ids, in the order of its messages: in the older form they have none, and an
    answer names its function alone."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._count = 0

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The call of an assistant's message."""
        return {"id": self._new(name), "type": "function", "function": {"name": name, "arguments": arguments}}

    def id_of(self, name: str) -> str:
        """Of the last call of the function; a new one if there was none, as of a conversation that is cut."""
        return self._ids.get(name) or self._new(name)

    def _new(self, name: str) -> str:
        self._ids[name] = f"call_{self._count}"
        self._count += 1
        return self._ids[name]
