"""Pydantic AI's agents: a task on stdin, what they got on stdout."""

import asyncio
import json
import sys

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

task = json.load(sys.stdin)
model = OpenAIChatModel(task["model"], provider=OpenAIProvider(base_url=f"{task['url']}/v1", api_key=task["key"]))
settings = {"temperature": 0, "max_tokens": task["max_tokens"]}


class Place(BaseModel):
    """The task's schema, as this client wants it."""

    city: str = Field(max_length=30)
    is_capital: bool


class Weather(BaseModel):
    """The arguments of the task's tool."""

    city: str = Field(max_length=30)


async def main() -> None:
    plain = Agent(model, model_settings=settings)
    chat = await plain.run(task["question"])
    async with plain.run_stream(task["question"]) as stream:
        parts = [part async for part in stream.stream_text(delta=True, debounce_by=None)]
    name = task["tool"]["function"]["name"]
    caller = Agent(model, model_settings=settings, output_type=ToolOutput(Weather, name=name), retries=0)
    called = await caller.run(task["question"])
    native = Agent(model, model_settings=settings, output_type=NativeOutput(Place), retries=0)
    structured = await native.run(task["question"])
    [call] = [part for message in called.all_messages() for part in message.parts if part.part_kind == "tool-call"]
    json.dump(
        {
            "chat": chat.output,
            "parts": parts,
            "tool": {"name": call.tool_name, "arguments": call.args_as_dict()},
            "structured": structured.output.model_dump(),
        },
        sys.stdout,
    )


asyncio.run(main())
