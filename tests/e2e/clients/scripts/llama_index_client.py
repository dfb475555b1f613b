"""LlamaIndex's model for servers of OpenAI's kind: a task on stdin, what it got on stdout."""

import json
import sys
from typing import Annotated

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

task = json.load(sys.stdin)
model = OpenAILike(
    model=task["model"],
    api_base=f"{task['url']}/v1",
    api_key=task["key"],
    temperature=0,
    max_tokens=task["max_tokens"],
    max_retries=0,
    context_window=2048,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
)


class Place(BaseModel):
    """The task's schema, as this client wants it."""

    city: str = Field(max_length=30)
    is_capital: bool


def get_weather(city: Annotated[str, Field(max_length=30)]) -> str:
    """The weather of a city."""
    return city


question = [ChatMessage(role="user", content=task["question"])]
chat = model.chat(question)
parts = [part.delta or "" for part in model.stream_chat(question)]
tool = FunctionTool.from_defaults(get_weather)
answer = model.chat_with_tools([tool], user_msg=task["question"], tool_required=True)
called = model.get_tool_calls_from_response(answer)[0]
structured = model.as_structured_llm(Place).chat(question).raw
json.dump(
    {
        "chat": chat.message.content,
        "parts": parts,
        "tool": {"name": called.tool_name, "arguments": called.tool_kwargs},
        "structured": structured.model_dump(),
    },
    sys.stdout,
)
