"""The commands of the README work."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.program import TURNPIKE, Program

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("TURNPIKE_")}
"""An environment in which nothing of Turnpike is set, as a newcomer has it."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def block_with(language: str, text: str) -> str:
    found = [block for block in blocks(language) if text in block]
    assert len(found) == 1, f"{len(found)} {language} blocks with {text!r}"
    return found[0]


def at_server(text: str, program: Program) -> str:
    assert "http://127.0.0.1:8080" in text
    return text.replace("http://127.0.0.1:8080", program.url)


def curl(marked: str, program: Program) -> str:
    done = subprocess.run(
        ["bash", "-c", at_server(block_with("sh", marked), program)],
        capture_output=True,
        text=True,
        check=True,
        env={**PLAIN, "TURNPIKE_KEY": program.key},
    )
    return done.stdout


def run_python(example: str, program: Program) -> str:
    done = subprocess.run(
        [sys.executable, "-c", example],
        capture_output=True,
        text=True,
        check=True,
        env={**PLAIN, "TURNPIKE_KEY": program.key},
    )
    return done.stdout


def test_the_curl_line_streams_an_answer(program: Program) -> None:
    answer = curl('"stream": true', program)
    assert "Paris" in answer
    assert answer.rstrip().endswith("data: [DONE]")


def test_the_chat_with_a_session_is_remembered(program: Program) -> None:
    first, second = (json.loads(curl('"session_id"', program))["usage"]["prompt_tokens"] for _ in range(2))
    assert second > first


def test_the_client_example_answers(program: Program) -> None:
    example = at_server(block_with("python", "OpenAI("), program)
    assert run_python(example, program).strip() == "The capital of France is Paris."


def test_the_tool_example_calls_it(program: Program) -> None:
    client = at_server(block_with("python", "OpenAI("), program)
    lines = run_python(client + block_with("python", "tool_choice"), program).splitlines()
    assert json.loads(lines[-1]) == {"city": "Paris"}


def test_the_library_example_generates(smollm2_file: Path) -> None:
    example = block_with("python", "Engine.load")
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=True, cwd=smollm2_file.parent
    )
    assert "Paris" in done.stdout.splitlines()[0]


@pytest.mark.parametrize("name", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(name: str) -> None:
    assert (ROOT / name).exists()


def test_the_tenant_commands_work(program: Program) -> None:
    topics = ("turnpike tenant create", "turnpike limit set", "turnpike credit grant", "turnpike route set")
    lines = "".join(block_with("sh", topic) for topic in topics)
    lines = lines.replace("acme", "another")
    script = f"set -e\n{lines}\necho $TURNPIKE_KEY\n"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={
            **PLAIN,
            "TURNPIKE_DATA_DIR": str(program.data_dir),
            "PATH": f"{TURNPIKE.parent}:{PLAIN['PATH']}",
        },
    )
    assert done.stdout.splitlines()[-1].startswith("tp-")
    assert "5000000" in done.stdout
