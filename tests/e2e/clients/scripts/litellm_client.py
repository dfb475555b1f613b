"""LiteLLM as a client: a task on stdin, what it got on stdout."""

import json
import sys

import litellm

task = json.load(sys.stdin)
common = {
    "model": f"openai/{task['model']}",
    "api_base": f"{task['url']}/v1",
    "api_key": task["key"],
    "messages": [{"role": "user", "content": task["question"]}],
    "temperature": 0,
    "max_tokens": task["max_tokens"],
}
chat = litellm.completion(**common)
parts = [part.choices[0].delta.content or "" for part in litellm.completion(**common, stream=True)]
called = litellm.completion(**common, tools=[task["tool"]], tool_choice="required").choices[0].message.tool_calls[0]
wanted = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": task["schema"]}}
structured = litellm.completion(**common, response_format=wanted)
json.dump(
    {
        "chat": chat.choices[0].message.content,
        "parts": parts,
        "tool": {"name": called.function.name, "arguments": json.loads(called.function.arguments)},
        "structured": json.loads(structured.choices[0].message.content),
    },
    sys.stdout,
)
