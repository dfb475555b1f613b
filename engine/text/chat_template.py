"""Chat templates: Jinja programs in a checkpoint that render a conversation to text.

They are untrusted code: they run in Jinja's immutable sandbox with the variables and filters of transformers'
`apply_chat_template`, and nothing else.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]

_PROBE_ARGUMENTS = {"a": "b"}
"""Printed as they are, they would be Python's text and not JSON."""


class ChatTemplateError(ValueError):
    """A conversation cannot be rendered: the template rejects it, or fails."""


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; it has no effect here."""

    tags = {"generation"}  # noqa: RUF012 (Jinja reads a plain class attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces Jinja's own filter, which escapes for HTML; models are trained on plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class ChatTemplate:
    """A compiled template, and a second one for conversations with tools if the checkpoint has it.

    `special_tokens`: the variables `bos_token`, `eos_token` and so on; a caller's variables cannot shadow them.

    Raises:
        ChatTemplateError: the source is not a Jinja template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, tool_source: str | None = None) -> None:
        self.source = source
        self.tool_source = tool_source
        self._special_tokens = dict(special_tokens)
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self._tool_template = environment.from_string(tool_source) if tool_source else self._template
            sources = [environment.parse(text) for text in (source, tool_source or "")]
        except Exception as error:  # Python compiles what Jinja generates, and may refuse it in its own way
            raise ChatTemplateError(f"not a template: {error}") from error
        self.variables = frozenset[str]().union(*map(meta.find_undeclared_variables, sources))
        """Names that the template reads without setting them."""
        self._wants_parts = self._needs_content_parts()
        self._wants_text_arguments = False
        self._wants_text_arguments = self._needs_text_arguments()
        self.knows_tools = self._shows_tools()
        """Whether the rendered prompt contains the tools."""
        self.takes_system = self._shows_system()
        """Whether the rendered prompt contains a system message."""
        self.takes_parallel_calls = self._shows_parallel_calls()
        """Whether one message may have several tool calls."""

    def render(self, messages: Sequence[Message], **variables: Any) -> str:
        """The conversation as text: `prepare`, then `render_prepared` with its keyword arguments."""
        return self.render_prepared(self.prepare(messages), **variables)

    def prepare(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Copies of messages in the form that the template reads.

        As in vLLM, a list of content parts becomes the text parts joined by newlines, and null or missing content the
        empty string. Tool call arguments given as a JSON object in a string become that object, or the reverse for a
        template that appends them to text, as DeepSeek's. The role `developer` becomes `system` for a template that
        does not know it. All strings that the template will read are thus decoded
        before it runs.

        Raises:
            ChatTemplateError: a message is malformed, or a content part is not text.
        """
        content_form = _as_parts if self._wants_parts else _as_text
        arguments_form = _with_text_arguments if self._wants_text_arguments else _with_object_arguments
        prepared = [_prepared(message, content_form, arguments_form) for message in messages]
        if "developer" not in self.source:
            for message in prepared:
                if message.get("role") == "developer":
                    message["role"] = "system"
        return prepared

    def render_prepared(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of prepared messages.

        Raises:
            ChatTemplateError: the template rejects these messages (`raise_exception`) or fails on them.
        """
        context = {
            **variables,
            **self._special_tokens,
            "messages": messages,
            "tools": tools or None,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._tool_template if tools else self._template
        try:
            return template.render(context)
        except Exception as error:  # a template may fail in any way a program may
            raise ChatTemplateError(str(error) or type(error).__name__) from error

    def _needs_content_parts(self) -> bool:
        """Whether a probe's text is rendered only if its content is a list of parts."""
        return not self._shows_probe("probe") and self._shows_probe([{"type": "text", "text": "probe"}])

    def _needs_text_arguments(self) -> bool:
        """Whether a probe's call is rendered as JSON only if its arguments are text."""
        rendered = self._calls("probe")
        if "probe" in rendered and str(_PROBE_ARGUMENTS) not in rendered:
            return False
        self._wants_text_arguments = True
        return "probe" in self._calls("probe")

    def _shows_probe(self, content: str | list[dict[str, str]]) -> bool:
        return "probe" in self._tried([{"role": "user", "content": content}])

    def _shows_tools(self) -> bool:
        parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "a"}}, "required": ["a"]}
        tool = {"type": "function", "function": {"name": "probe", "description": "a", "parameters": parameters}}
        return "probe" in self._tried(self.prepare([{"role": "user", "content": "a"}]), tools=[tool])

    def _shows_system(self) -> bool:
        messages = [{"role": "system", "content": "probe"}, {"role": "user", "content": "a"}]
        return "probe" in self._tried(self.prepare(messages))

    def _shows_parallel_calls(self) -> bool:
        return "probe" in self._calls("one", "probe")

    def _calls(self, *names: str) -> str:
        """A rendering of one message with calls of these tools; "" if the template rejects it."""
        functions: list[dict[str, Any]] = [{"name": name, "arguments": _PROBE_ARGUMENTS} for name in names]
        calls = [{"id": f"probe000{i}", "type": "function", "function": each} for i, each in enumerate(functions)]
        messages: list[Message] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            *({"role": "tool", "tool_call_id": call["id"], "content": "a"} for call in calls),
        ]
        return self._tried(self.prepare(messages))

    def _tried(self, messages: Sequence[Message], **variables: Any) -> str:
        """A rendering; "" if the template rejects the messages."""
        try:
            return self.render_prepared(messages, **variables)
        except ChatTemplateError:
            return ""


def _prepared(
    message: Message, content_form: Callable[[Any], Any], arguments_form: Callable[[Any], Any]
) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"a message is an object, not {type(message).__name__}")
    prepared = {**message, "content": content_form(message.get("content"))}
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple):
        prepared["tool_calls"] = [arguments_form(call) for call in calls]
    return prepared


def ending_in(message: Mapping[str, Any], end: str) -> dict[str, Any]:
    """A copy of a prepared message with `end` appended to its text.

    Raises:
        ChatTemplateError: its last part is not text.
    """
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + end}
    *before, last = content or [{"type": "text", "text": ""}]
    return {**message, "content": [*before, {"type": "text", "text": _text_of(last) + end}]}


def _as_text(content: Any) -> Any:
    if content is None:
        return ""
    if isinstance(content, list | tuple):
        return "\n".join(_text_of(part) for part in content)
    return content


def _as_parts(content: Any) -> Any:
    if content is None:
        return []
    if isinstance(content, list | tuple):
        return [{"type": "text", "text": _text_of(part)} for part in content]
    return [{"type": "text", "text": content}]


def _text_of(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise ChatTemplateError(f"content part of type {kind!r} is not text")
    return text


def _with_object_arguments(call: Any) -> Any:
    """The call with its arguments as an object. OpenAI's API has them as a JSON string, and templates serialise them
    again."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    arguments = function["arguments"]
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call


def _with_text_arguments(call: Any) -> Any:
    """The call with its arguments as JSON in a string."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return call
    return {**call, "function": {**function, "arguments": _to_json(function["arguments"])}}
