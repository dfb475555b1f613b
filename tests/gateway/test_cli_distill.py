"""`turnpike distill`: what it is given, what it says, and what is wrong with it on one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine.checkpoints.checkpoint import open_checkpoint
from engine.distillation import answers
from engine.distillation.prompts import read_prompts
from gateway.management.cli import app
from tests.support.tiny_models import make_checkpoint

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "teacher", "llama", num_hidden_layers=3, tie_word_embeddings=True)


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One prompt that is held out, and three that are not."""
    monkeypatch.setattr(answers, "MAX_ANSWER_TOKENS", 8)
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(number)}) + "\n" for number in range(200)), encoding="utf-8")
    read = read_prompts(path)
    few = [each for each in read if each.held_out][:1] + [each for each in read if not each.held_out][:3]
    path.write_text("".join(json.dumps({"messages": list(each.messages)}) + "\n" for each in few), encoding="utf-8")
    return path


def distill(*options: str | Path) -> Result:
    return CliRunner().invoke(app, ["distill", *map(str, options)])


def test_it_shows_how_far_it_is_and_what_came_of_it(teacher: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    result = distill("--target", teacher, "--prompts", prompts, "--layers", "0,2", "--steps", "2", "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{out}: ")
    assert "% top-1 agreement" in result.stdout
    assert "2 steps" in result.stdout
    assert "answers: 100 %" in result.stderr
    assert "training: 100 %" in result.stderr
    assert open_checkpoint(out).config.num_layers == 2
    assert (tmp_path / "small.work" / "student.pt").exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--layers", "4"], "layers: 4"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--target", "gpt-5"], "'gpt-5'"),
    ],
)
def test_errors_are_one_line(options: list[str], complaint: str, teacher: Path, prompts: Path, tmp_path: Path) -> None:
    given = {"--target": str(teacher), "--prompts": str(prompts), "--out": str(tmp_path / "small"), "--steps": "1"}
    given |= dict([options])
    result = distill(*(part for pair in given.items() for part in pair))
    assert result.exit_code == 1
    assert result.stderr.startswith("turnpike: ")
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "small").exists()
