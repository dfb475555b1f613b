"""An engine that speculates: who drafts for whom, that the text is the same, and what it takes of memory."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig
from engine.speculation.vocabulary import Vocabulary, VocabularyMismatch, check_same_vocabulary
from tests.support.tiny_models import make_checkpoint

PROMPTS = [list(range(10, 60)), list(range(10, 45)), [7, 8, 9] * 10]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, top_p=0.9, seed=3, n=2, max_tokens=30, ignore_eos=True)
MEMORY = {"dtype": "float32", "kv_cache_bytes": 1 << 20, "scheduler": SchedulerConfig(max_running=4, step_tokens=64)}


@pytest.fixture(scope="module")
def folders(tiny_folders: dict[str, Path]) -> dict[str, Path]:
    """The same model twice, by two names."""
    return {"large": tiny_folders["llama"], "small": tiny_folders["llama"]}


@pytest.fixture(scope="module")
def texts(folders: dict[str, Path]) -> Iterator[list[list[tuple[int, ...]]]]:
    with Engine.load({"large": folders["large"]}, EngineConfig(**MEMORY)) as engine:  # type: ignore[arg-type]
        yield texts_of(engine)


def texts_of(engine: Engine) -> list[list[tuple[int, ...]]]:
    """Twice the same, so that prompts are prefix hits."""
    rounds = [engine.generate("large", PROMPTS, params) for params in (GREEDY, SEEDED, GREEDY, SEEDED)]
    return [[choice.token_ids for choice in choices] for answers in rounds for choices in answers]


@pytest.mark.usefixtures("always_draft")
@pytest.mark.parametrize("ngram", [True, False])
@pytest.mark.parametrize("drafts", [{}, {"large": "small"}], ids=["no draft model", "draft model"])
def test_text_is_the_same_without_drafts(
    folders: dict[str, Path], texts: list[list[tuple[int, ...]]], ngram: bool, drafts: dict[str, str]
) -> None:
    config = EngineConfig(ngram=ngram, drafts=drafts, draft_depth=5, **MEMORY)  # type: ignore[arg-type]
    with Engine.load(folders, config) as engine:
        assert [*engine.models] == ["large", "small"]
        assert texts_of(engine) == texts
        given = engine.stats()["large"].speculation
    accepted = {each.proposer: each.accepted_total for each in given.drafts} if given is not None else {}
    assert set(accepted) == {name for name, used in (("ngram", ngram), ("draft", drafts)) if used}
    assert all(accepted.values())


def test_usage_says_what_came_of_drafts(folders: dict[str, Path], always_draft: None) -> None:
    config = EngineConfig(drafts={"large": "small"}, draft_depth=4, **MEMORY)  # type: ignore[arg-type]
    with Engine.load(folders, config) as engine:
        usage = engine.generate("large", PROMPTS[:1], GREEDY)[0][0].usage
        assert usage.completion_tokens == 40
        assert 25 < usage.accepted_draft_tokens <= usage.draft_tokens < 40
        assert engine.generate("small", PROMPTS[:1], GREEDY)[0][0].usage.draft_tokens == 0


def test_there_are_no_drafts_where_many_run(folders: dict[str, Path]) -> None:
    config = EngineConfig(ngram=True, drafts={"large": "small"}, speculate_below=0, **MEMORY)  # type: ignore[arg-type]
    with Engine.load(folders, config) as engine:
        choices = [choice for choices in engine.generate("large", PROMPTS, GREEDY) for choice in choices]
    assert sum(choice.usage.draft_tokens for choice in choices) == 0


def test_drafting_takes_its_share_of_kv_memory(folders: dict[str, Path]) -> None:
    blocks = {}
    for drafts in ({}, {"large": "small"}):
        config = EngineConfig(drafts=drafts, **MEMORY)  # type: ignore[arg-type]
        with Engine.load(folders, config) as engine:
            blocks[len(drafts)] = {name: stats.num_blocks for name, stats in engine.stats().items()}
    assert blocks[1]["small"] == blocks[0]["small"]
    block_bytes = 2 * 2 * 2 * 16 * 4 * 16
    assert blocks[0]["large"] == (1 << 20) // block_bytes
    assert blocks[1]["large"] == ((1 << 20) - 4 * block_bytes) // (2 * block_bytes)


def test_a_draft_model_needs_the_vocabulary(
    tiny_folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = make_checkpoint(tmp_path / "other", "llama", vocab_size=640)
    models = {"large": tiny_folders["llama"], "small": other}
    refusal = r"small cannot draft for large: their vocabularies differ in size, 640 against 512 tokens"
    with pytest.raises(VocabularyMismatch, match=refusal):
        Engine.load(models, EngineConfig(drafts={"large": "small"}, **MEMORY))  # type: ignore[arg-type]
    config = EngineConfig(drafts={"large": "small"}, require_drafts=False, **MEMORY)  # type: ignore[arg-type]
    with Engine.load(models, config) as engine:
        assert engine.stats()["large"].speculation is None
    assert "small cannot draft for large" in caplog.text


def vocabulary(model: str, *tokens: bytes, size: int = 3) -> Vocabulary:
    known = SimpleNamespace(
        vocab_size=len(tokens), token_bytes=lambda token: tokens[token], shares_with=lambda other: False
    )
    return Vocabulary(model, size, known)  # type: ignore[arg-type]


def test_the_first_token_that_differs_is_named() -> None:
    target = vocabulary("large", b"a", b"b")
    check_same_vocabulary(target, vocabulary("small", b"a", b"b"))
    with pytest.raises(VocabularyMismatch, match="differ, token 1 is b'c' against b'b'"):
        check_same_vocabulary(target, vocabulary("small", b"a", b"c"))
    with pytest.raises(VocabularyMismatch, match="in size, 1 against 2 tokens"):
        check_same_vocabulary(target, vocabulary("small", b"a"))


def test_drafts_of_a_model_that_is_not_loaded(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="draft model tiny of large"):
        Engine.load(folders, EngineConfig(drafts={"large": "tiny"}, **MEMORY))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"draft_depth": 0},
        {"draft_depth": 17},
        {"speculate_below": -1},
        {"drafts": {"a": "a"}},
        {"drafts": {"a": "b", "b": "c"}},
    ],
    ids=str,
)
def test_settings_that_make_no_sense(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"draft|speculate_below"):
        EngineConfig(**settings)  # type: ignore[arg-type]
