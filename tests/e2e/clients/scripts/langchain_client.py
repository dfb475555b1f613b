"""LangChain's chat model: a task on stdin, what it got on stdout."""

import json
import sys

from langchain_openai import ChatOpenAI

task = json.load(sys.stdin)
model = ChatOpenAI(
    model=task["model"],
    base_url=f"{task['url']}/v1",
    api_key=task["key"],
    temperature=0,
    max_tokens=task["max_tokens"],
    max_retries=0,
)
chat = model.invoke(task["question"])
parts = [part.content for part in model.stream(task["question"])]
[called] = model.bind_tools([task["tool"]], tool_choice="required").invoke(task["question"]).tool_calls[:1]
# As its users write it: any of the tools, with a schema that is silent about further members.
any_call = model.bind_tools([task["open_tool"]], tool_choice="any").invoke(task["question"])
place = {**task["schema"], "title": "place"}
structured = model.with_structured_output(place, method="json_schema", strict=True).invoke(task["question"])
json.dump(
    {
        "chat": chat.content,
        "parts": parts,
        "tool": {"name": called["name"], "arguments": called["args"]},
        "structured": structured,
        "calls": [{"name": call["name"], "arguments": call["args"]} for call in any_call.tool_calls],
        "invalid_calls": len(any_call.invalid_tool_calls),
    },
    sys.stdout,
)
