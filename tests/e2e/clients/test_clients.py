"""Popular clients, unchanged: a chat, a stream, a call of a tool, an answer of a given form."""

import json
import os
import subprocess

import jsonschema
import pytest

from tests.e2e.clients.environments import ENVIRONMENTS, Environment
from tests.support.program import Program

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}, "is_capital": {"type": "boolean"}},
    "required": ["city", "is_capital"],
    "additionalProperties": False,
}
ARGUMENTS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": ARGUMENTS},
}
OPEN_WEATHER = {
    "type": "function",
    "function": WEATHER["function"]
    | {"parameters": {name: value for name, value in ARGUMENTS.items() if name != "additionalProperties"}},
}
"""As frameworks write it: nothing is said about further members."""
ANSWER = "The capital of France is Paris."


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda each: each.name)
def test_a_client_gets_what_it_asks_for(program: Program, environment: Environment) -> None:
    task = {
        "url": program.url,
        "key": program.key,
        "model": "smollm2",
        "question": "What is the capital of France?",
        "max_tokens": 80,
        "tool": WEATHER,
        "open_tool": OPEN_WEATHER,
        "weather": "What is the weather in Paris?",
        "schema": PLACE,
    }
    # Nothing of this process's own settings; a client that calls home has nowhere to.
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    variables |= {"LITELLM_LOCAL_MODEL_COST_MAP": "true"}
    done = subprocess.run(
        environment.command(), input=json.dumps(task), capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["chat"] == ANSWER
    assert "".join(got["parts"]) == ANSWER
    assert len(got["parts"]) > 1
    assert got["tool"]["name"] == WEATHER["function"]["name"]
    jsonschema.validate(got["tool"]["arguments"], ARGUMENTS)
    jsonschema.validate(got["structured"], PLACE)
    if "calls" in got:
        assert got["calls"], "a forced call is a call"
        assert not got["invalid_calls"]
    program.wait_idle()
