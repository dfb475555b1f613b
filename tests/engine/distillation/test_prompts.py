"""Reading prompts, and what follows from a prompt's content alone."""

import json
from pathlib import Path

import pytest

from engine.distillation.prompts import PromptError, read_prompts


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def test_both_forms_are_the_same_prompt(tmp_path: Path) -> None:
    same = {"messages": [{"content": "What is tea?", "role": "user"}]}
    (prompt,) = read_prompts(write(tmp_path / "p.jsonl", {"prompt": "What is tea?"}, same))
    assert prompt.messages == ({"role": "user", "content": "What is tea?"},)


def test_one_in_32_is_held_out_wherever_it_stands(tmp_path: Path) -> None:
    lines = [{"prompt": f"Count to {number}."} for number in range(3200)]
    forward = read_prompts(write(tmp_path / "a.jsonl", *lines))
    backward = read_prompts(write(tmp_path / "b.jsonl", *reversed(lines)))
    held_out = {prompt.digest for prompt in forward if prompt.held_out}
    assert held_out == {prompt.digest for prompt in backward if prompt.held_out}
    assert 70 < len(held_out) < 130
    assert {prompt.temperature for prompt in forward} == {0.0, 0.25, 0.5, 0.75, 1.0}


def test_a_seed_depends_on_the_run_and_the_prompt(tmp_path: Path) -> None:
    first, second = read_prompts(write(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": "b"}))
    assert len({first.seed(0), first.seed(1), second.seed(0)}) == 3
    assert all(0 <= seed < 2**63 for seed in (first.seed(0), first.seed(1)))


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"prompt": 1}',
        '{"messages": []}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": ["hello"]}',
    ],
)
def test_another_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n\n{line}\n', encoding="utf-8")
    with pytest.raises(PromptError, match=r"^p\.jsonl:3: "):
        read_prompts(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no prompt"):
        read_prompts(write(tmp_path / "p.jsonl"))
