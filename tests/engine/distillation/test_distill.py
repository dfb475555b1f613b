"""A whole run with a tiny teacher, stopped and resumed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from engine.config import EngineConfig
from engine.distillation import Distillation, DistillationError, answers, chosen_layers, distill
from engine.distillation.answers import read_answers, write_answers
from engine.distillation.prompts import Prompt, read_prompts
from engine.engine import Engine
from engine.request import SamplingParams

NAMES = (
    *("config.json", "draft.safetensors", "held_out.jsonl", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json"),
)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Sixteen prompts, some of which are held out."""
    path = tmp_path / "all.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Count to {n}."}) + "\n" for n in range(200)), encoding="utf-8")
    read = read_prompts(path)
    few = [each for each in read if each.held_out][:3] + [each for each in read if not each.held_out][:13]
    chosen = tmp_path / "prompts.jsonl"
    chosen.write_text("".join(json.dumps({"messages": list(each.messages)}) + "\n" for each in few), encoding="utf-8")
    return chosen


@pytest.fixture
def task(teacher_folder: Path, prompts: Path, tmp_path: Path) -> Distillation:
    return Distillation(
        teacher=teacher_folder,
        prompts=prompts,
        layers=(0, 3),
        output=tmp_path / "student",
        work=tmp_path / "work",
        steps=3,
    )


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWER_TOKENS", 16)


def silent(stage: str, done: float, total: float, note: str) -> None:
    assert done <= total


def test_a_student_is_served_like_any_other_model(task: Distillation) -> None:
    stages: dict[str, str] = {}
    result = distill(task, lambda stage, done, total, note: stages.update({stage: note}))
    assert list(stages) == ["answers", "the teacher's view, held out", "the teacher's view, taught", "training"]
    assert "top-1" in stages["training"]
    assert result.steps == 3
    assert result.agreement.positions > 0
    assert sorted(each.name for each in task.output.iterdir()) == sorted(NAMES)
    with Engine.load({"student": task.output}, EngineConfig(kv_cache_bytes=1 << 22)) as engine:
        (choices,) = engine.generate("student", ["a"], SamplingParams(max_tokens=4, temperature=0))
    assert choices[0].usage.completion_tokens > 0
    judged = read_prompts(task.output / "held_out.jsonl")
    assert judged == [each for each in read_prompts(task.prompts) if each.held_out]
    frequent = load_file(task.output / "draft.safetensors")["frequent_tokens"]
    assert frequent.dtype == np.int32
    assert len(set(frequent.tolist())) == len(frequent)


def test_answers_steps_and_a_seed_give_one_student(task: Distillation, tmp_path: Path) -> None:
    distill(task, silent)
    other = replace(task, output=tmp_path / "again", work=tmp_path / "work again")
    other.work.mkdir()
    (other.work / "answers.jsonl").write_bytes((task.work / "answers.jsonl").read_bytes())
    distill(other, silent)
    weights = (task.output / "model.safetensors").read_bytes()
    assert (other.output / "model.safetensors").read_bytes() == weights
    longer = replace(task, steps=6)
    assert distill(longer, silent).steps == 6, "a longer run resumes at the last step"
    assert (task.output / "model.safetensors").read_bytes() != weights


def test_work_of_another_run_is_not_taken_over(task: Distillation, tmp_path: Path) -> None:
    distill(task, silent)
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text("".join(task.prompts.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    for other, what in ((replace(task, layers=(0, 1)), "layers"), (replace(task, prompts=fewer), "prompts")):
        with pytest.raises(DistillationError, match=f"is of a run with other {what}: remove it"):
            distill(other, silent)


def test_nothing_to_judge_by_is_said_before_training(task: Distillation, tmp_path: Path) -> None:
    taught = [each for each in read_prompts(task.prompts) if not each.held_out]
    path = tmp_path / "taught.jsonl"
    path.write_text("".join(json.dumps({"messages": list(each.messages)}) + "\n" for each in taught), encoding="utf-8")
    with pytest.raises(DistillationError, match="too few prompts"):
        distill(replace(task, prompts=path), silent)


def by_digest(path: Path) -> dict[str, tuple[int, ...]]:
    return {answer.digest: answer.answer_ids for answer in read_answers(path)}


def test_stopping_the_writer_does_not_change_the_answers(teacher_folder: Path, prompts: Path, tmp_path: Path) -> None:
    read = read_prompts(prompts)
    write_answers(teacher_folder, read, tmp_path / "whole", seed=5)
    whole = by_digest(tmp_path / "whole")
    assert whole.keys() == {prompt.digest for prompt in read}
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    (tmp_path / "torn").write_bytes(b"".join(lines[:7]) + lines[7][:20])
    assert len(by_digest(tmp_path / "torn")) == 7
    write_answers(teacher_folder, read, tmp_path / "torn", seed=5)
    assert by_digest(tmp_path / "torn") == whole
    write_answers(teacher_folder, read, tmp_path / "other", seed=6)
    assert by_digest(tmp_path / "other") != whole


def test_a_prompt_that_is_too_long_is_passed_over(teacher_folder: Path, tmp_path: Path) -> None:
    long = Prompt(({"role": "user", "content": "x y " * 600},), "ff" * 32)
    short = Prompt(({"role": "user", "content": "x"},), "ee" * 32)
    write_answers(teacher_folder, [long, short], tmp_path / "answers", seed=0)
    assert by_digest(tmp_path / "answers").keys() == {short.digest}


@pytest.mark.parametrize(
    ("wanted", "chosen"), [("1", (0,)), ("6", (0, 1, 2, 27, 28, 29)), ("3", (0, 1, 29)), ("0,5,29", (0, 5, 29))]
)
def test_layers_are_the_first_and_the_last_or_those_named(wanted: str, chosen: tuple[int, ...]) -> None:
    assert chosen_layers(wanted, of=30) == chosen


@pytest.mark.parametrize("wanted", ["", "0", "31", "six", "0,30", "3,1", "1,1", "-1,2", "1,"])
def test_other_layers_are_refused(wanted: str) -> None:
    with pytest.raises(DistillationError, match="layers: "):
        chosen_layers(wanted, of=30)
