"""The commands of the README work."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.demo_banner import commands_of, read_banner
from tests.support.program import TURNPIKE, Program
from tests.support.servers import free_port

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


def first_page() -> str:
    """The commands before "More", in their order, as one script. Its variables are those that the commands set."""
    page = README.partition("\n## More\n")[0]
    script = ["set -eu", "banner"]
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        if language == "sh":
            script.append(block)
        elif language == "python":
            script.append(f"python - <<'PYTHON'\n{block}PYTHON\n")
    return "\n".join(script)


def test_the_first_page_works_in_order_with_nothing_set(smollm2_file: Path, tmp_path: Path) -> None:
    """From `turnpike serve --demo` on, which `make run` ends with: with an empty home folder, in one shell."""
    models = tmp_path / ".cache" / "turnpike" / "models"
    models.parent.mkdir(parents=True)
    models.symlink_to(smollm2_file.parent)
    environment = {"HOME": str(tmp_path), "PATH": f"{TURNPIKE.parent}:{os.defpath}"}
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [TURNPIKE, "serve", "--demo", "--port", str(port)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert server.stdout is not None
        pasted = commands_of(read_banner(server.stdout))
        script = first_page().replace("http://127.0.0.1:8080", f"http://127.0.0.1:{port}")
        done = subprocess.run(
            ["bash", "-c", script.replace("banner", pasted, 1)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    finally:
        server.terminate()
        server.communicate(timeout=60)
    answer, _, rest = done.stdout.partition("data: [DONE]")
    assert "Paris" in answer
    for words in ("The capital of France is Paris.", "acme", "5000000", "premium x3", "smollm2"):
        assert words in rest


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
