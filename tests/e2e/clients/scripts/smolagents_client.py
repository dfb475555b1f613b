"""smolagents: its model and its ToolCallingAgent. A task on stdin, what they got on stdout."""

import json
import sys

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

task = json.load(sys.stdin)
model = OpenAIModel(
    model_id=task["model"],
    api_base=f"{task['url']}/v1",
    api_key=task["key"],
    temperature=0,
    max_tokens=task["max_tokens"],
)
messages = [{"role": "user", "content": [{"type": "text", "text": task["question"]}]}]
called: list[dict[str, object]] = []


@tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: The name of the city.
    """
    called.append({"city": city})
    return "sunny"


chat = model.generate(messages).content
parts = [part.content or "" for part in model.generate_stream(messages)]
wanted = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": task["schema"]}}
structured = model.generate(messages, response_format=wanted).content
agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=1, verbosity_level=LogLevel.OFF)
agent.run(task["weather"])
calls = [
    {"name": call.name, "arguments": call.arguments}
    for step in agent.memory.steps
    for call in getattr(step, "tool_calls", None) or []
]
json.dump(
    {
        "chat": chat,
        "parts": [part for part in parts if part],
        "tool": {"name": "get_weather", "arguments": called[0]} if called else {},
        "structured": json.loads(structured),
        "calls": calls,
        "invalid_calls": 0,
    },
    sys.stdout,
)
