"""Drafts of a small model: the text stays what it is, and who thinks as the target does drafts what it will say."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.checkpoints.checkpoint import open_checkpoint
from engine.execution.changes import LogitChanges
from engine.models.config import UnsupportedCheckpoint
from engine.models.host_model import HostModel
from engine.models.layout import DRAFT, FREQUENT_TOKENS
from engine.models.transformer import Transformer
from engine.request import Request, SamplingParams
from engine.speculation.device.drafter import DeviceDrafter
from engine.speculation.device.frequent_head import make_device_head
from engine.speculation.draft_head import DraftHead, WholeHead, make_head
from engine.speculation.draft_model import DraftModel
from engine.speculation.host_drafter import HostDrafter
from engine.speculation.policy import FixedDepth
from engine.speculation.proposer import DraftWant
from engine.speculation.speculator import Speculator
from kernels.arrays import Array, Ints
from kernels.host import HostColumns, HostEdits
from kernels.reference_step import ReferenceStepOps
from tests.engine.execution.device.harness import load_reference, rerun
from tests.engine.execution.draft_cases import (
    EVERYTHING,
    SEEDED,
    TOGGLES,
    Coin,
    assert_same,
    mixed,
    model_of,
    usage_of,
    without,
)
from tests.engine.execution.harness import GREEDY, Harness, fill_with_nan, load_tiny, prompt
from tests.support.tiny_models import make_checkpoint
from tests.support.tiny_tokenizer import VOCAB_SIZE

FREQUENT = list(range(1, VOCAB_SIZE, 2))
PLACES = ("host", "device")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model with the same vocabulary and other weights."""
    folder = tmp_path_factory.mktemp("draft") / "stranger"
    return make_checkpoint(folder, "llama", seed=9, num_hidden_layers=1, num_key_value_heads=1)


@cache
def loaded(folder: Path) -> HostModel:
    return load_tiny(folder)


def draft_with(model: HostModel, head: DraftHead | None = None, **changes: int) -> DraftModel:
    """Its memory is full of what is no number: nothing that was not written may be read."""
    sizes = {"num_blocks": 256, "num_slots": 64, "max_positions": model.config.max_position, **changes}
    drafter = HostDrafter(model, head or WholeHead(model), **sizes)
    fill_with_nan(drafter._kv)
    return DraftModel(drafter, **sizes)


def draft_on(place: str, folder: Path, names: Path | None = None, **changes: int) -> DraftModel:
    """`place`: "host", or "device", which replays the steps of few rows. `names`: the folder that lists frequent
    tokens; another one, as the model's is shared."""
    checkpoint = open_checkpoint(folder)
    if place == "host":
        return draft_with(loaded(folder), make_head(loaded(folder), checkpoint, names or folder), **changes)
    model = on_device(folder)
    sizes = {"num_blocks": 256, "num_slots": 64, "max_positions": model.config.max_position, **changes}
    drafter = DeviceDrafter(model, ReferenceStepOps(), make_device_head(model, checkpoint, names or folder), **sizes)
    fill_with_nan(drafter._kv)
    drafter.capture_graphs(rerun)
    return DraftModel(drafter, **sizes)


@cache
def on_device(folder: Path) -> Transformer:
    return load_reference(folder)


@pytest.fixture
def frequent(tmp_path: Path) -> Path:
    """A folder that names `FREQUENT`. Their order does not matter."""
    shuffled = Random(3).sample(FREQUENT, len(FREQUENT))
    save_file({FREQUENT_TOKENS: np.array(shuffled, dtype=np.int32)}, tmp_path / DRAFT)
    return tmp_path


def counts(harness: Harness) -> tuple[int, int]:
    """Drafts that were verified, and those that were accepted."""
    usages = [usage_of(generated) for generated in harness.results.values()]
    return sum(usage.draft_tokens for usage in usages), sum(usage.accepted_draft_tokens for usage in usages)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["itself", "stranger", "itself over some tokens"])
def test_text_is_the_same(
    tiny_folders: dict[str, Path], stranger: Path, frequent: Path, kind: str, depth: int, place: str
) -> None:
    folder = tiny_folders["llama"]
    draft = draft_on(place, stranger if kind == "stranger" else folder, frequent if "some" in kind else None)
    harness = Harness(model_of(folder), speculator=Speculator([draft], FixedDepth(depth)))
    mixed(harness)
    assert_same(dict(harness.run()), without(folder))
    drafts, accepted = counts(harness)
    if kind == "itself":
        assert accepted > 0.97 * drafts > 0, "it thinks as the target does, penalties, biases and noise included"
    else:
        assert 0 < accepted < 0.9 * drafts


@pytest.mark.parametrize("toggle", TOGGLES)
@pytest.mark.parametrize(("family", "place"), [("llama", "host"), ("mistral", "host"), ("mistral", "device")])
@pytest.mark.parametrize("kind", ["itself", "itself, toggled", "stranger"])
def test_text_is_that_without_whatever_else_happens(
    tiny_folders: dict[str, Path],
    stranger: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    place: str,
    toggle: str,
    kind: str,
) -> None:
    """With prompts that are longer than what the draft model catches up with in a step."""
    for drafter in (HostDrafter, DeviceDrafter):
        monkeypatch.setattr(drafter, "catch_up_tokens", 32)
    folder = tiny_folders[family]
    draft = draft_on(place, stranger if kind == "stranger" else folder)
    proposer = Coin(draft, free=False) if "toggled" in kind else draft
    harness = Harness(
        model_of(folder),
        speculator=Speculator([proposer], FixedDepth(8)),
        **TOGGLES[toggle],  # type: ignore[arg-type]
    )
    mixed(harness)
    given = harness.run(preempt_every=3 if toggle == "preempted" else None)
    assert_same(dict(given), without(folder))
    drafts, accepted = counts(harness)
    if kind != "stranger":
        assert accepted > 0.9 * drafts > 0


@pytest.mark.parametrize("place", PLACES)
def test_drafts_are_what_the_model_itself_would_say(tiny_folders: dict[str, Path], place: str) -> None:
    """For each kind of request alone, also past the end of a block and behind a prefix hit."""
    folder = tiny_folders["qwen3"]
    for params in (GREEDY, SEEDED, EVERYTHING):
        alone = Harness(model_of(folder))
        for _ in range(2):
            alone.add(prompt(28), params, max_tokens=24, seed=5)
        expected = alone.run()["0"].tokens
        draft = draft_on(place, folder)
        harness = Harness(model_of(folder))
        for _ in range(2):
            request = harness.add(prompt(28), params, max_tokens=24, seed=5)
            while harness.step() and request.slot is not None:
                known = request.output_tokens
                if request.computed == len(request.tokens) - 1:
                    drafts = draft.propose([DraftWant(request, 16)])[0]
                    shown = expected[known : known + 16]
                    assert list(drafts[: len(shown)]) == shown


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_drafted_behind_an_end(tiny_folders: dict[str, Path], place: str) -> None:
    folder = tiny_folders["llama"]
    alone = Harness(model_of(folder))
    expected = alone.add(prompt(20), max_tokens=12).id
    text = alone.run()[expected].tokens
    end = next(index for index in range(5, 12) if text[index] not in text[:index])
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=0, stop_token_ids=(text[end],))):
        draft = draft_on(place, folder)
        harness = Harness(model_of(folder))
        request = harness.add(prompt(20), params, eos=() if params.stop_token_ids else (text[end],))
        harness.step()
        assert draft.propose([DraftWant(request, 16)])[0] == text[1 : end + 1]


def test_a_step_computes_for_all_at_once_and_no_more_than_it_has_to(tiny_folders: dict[str, Path]) -> None:
    model = load_tiny(tiny_folders["llama"])
    passes: list[int] = []
    forward = model.forward

    def count(token_ids: Ints, *rest: object) -> Array:
        passes.append(len(token_ids))
        return forward(token_ids, *rest)  # type: ignore[arg-type]

    model.forward = count  # type: ignore[method-assign, assignment]
    draft = draft_with(model)
    harness = Harness(load_tiny(tiny_folders["llama"]), speculator=Speculator([draft], FixedDepth(3)))
    for index in range(4):
        harness.add(prompt(10 + index), max_tokens=100)
    harness.step()
    harness.step()
    assert passes == [10 + 11 + 12 + 13 + 4, 4, 4]
    harness.step()
    assert passes[3:] == [8, 4, 4], "the last draft, and the token that was drawn behind it"


class Failing:
    """A head that can fail."""

    def __init__(self, head: DraftHead) -> None:
        self.head = head
        self.fails = False

    def draw(self, hidden: Array, changes: LogitChanges, columns: HostColumns) -> Ints:
        if self.fails:
            raise RuntimeError("no drafts today")
        return self.head.draw(hidden, changes, columns)


def test_after_a_failure_it_starts_again(tiny_folders: dict[str, Path]) -> None:
    folder = tiny_folders["llama"]
    head = Failing(WholeHead(loaded(folder)))
    draft = draft_with(loaded(folder), head)
    harness = Harness(model_of(folder))
    request = harness.add(prompt(40), max_tokens=40)
    harness.step()
    draft.propose([DraftWant(request, 4)])
    harness.step()
    assert draft.lag(request) == 0
    head.fails = True
    with pytest.raises(RuntimeError, match="today"):
        draft.propose([DraftWant(request, 4)])
    assert draft.lag(request) == len(request.tokens) - 1
    head.fails = False
    drafts = draft.propose([DraftWant(request, 4)])[0]
    for _ in range(4):
        harness.step()
    assert request.tokens[-4:] == drafts


@pytest.mark.parametrize("place", PLACES)
def test_some_tokens_are_all_that_is_drafted(tiny_folders: dict[str, Path], frequent: Path, place: str) -> None:
    """Drafts equal the whole head's choice among those tokens."""
    folder = tiny_folders["llama"]
    some = draft_on(place, folder, frequent)
    everything = draft_with(loaded(folder), Others(WholeHead(loaded(folder)), frozenset(FREQUENT)))
    harness = Harness(model_of(folder))
    for index, params in enumerate((GREEDY, SEEDED, EVERYTHING)):
        harness.add(prompt(20), params, max_tokens=30, seed=index)
    drafted = 0
    while harness.step():
        wants = [DraftWant(request, 3) for request in harness.scheduler.running]
        drafts = some.propose(wants)
        assert drafts == everything.propose(wants)
        assert all(token % 2 for each in drafts for token in each)
        drafted += sum(map(len, drafts))
    assert drafted > 100


@dataclass
class Others:
    """A head over all tokens to which all but some are forbidden."""

    head: DraftHead
    allowed: frozenset[int]
    forbidden: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.forbidden = [token for token in range(VOCAB_SIZE) if token not in self.allowed]

    def draw(self, hidden: Array, changes: LogitChanges, columns: HostColumns) -> Ints:
        rows = np.arange(len(hidden)).repeat(len(self.forbidden))
        tokens = np.array(self.forbidden * len(hidden))
        never = np.full(len(rows), -np.inf, dtype=np.float32)
        more = HostEdits(rows, tokens, never)
        if (edits := changes.edits) is not None:
            more = HostEdits(
                np.concatenate([edits.rows, rows]),
                np.concatenate([edits.tokens, tokens]),
                np.concatenate([edits.values, never]),
            )
        return self.head.draw(hidden, changes._replace(edits=more), columns)


def test_a_head_without_a_list_of_tokens_is_the_models(tiny_folders: dict[str, Path]) -> None:
    folder = tiny_folders["llama"]
    assert isinstance(make_head(loaded(folder), open_checkpoint(folder), folder), WholeHead)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.array([1, VOCAB_SIZE], dtype=np.int32), "outside the vocabulary of 512"),
        (np.array([-1, 4], dtype=np.int32), "outside the vocabulary"),
        (np.array([1, 2]), "not a list of int32"),
        (np.array([[1, 2]], dtype=np.int32), "not a list of int32"),
        (np.array([], dtype=np.int32), "not a list of int32"),
        (None, "cannot be read"),
    ],
    ids=["too large", "negative", "wide", "two dimensions", "empty", "no file of that kind"],
)
def test_unusable_token_lists(tiny_folders: dict[str, Path], tmp_path: Path, tokens: Ints | None, message: str) -> None:
    folder = tiny_folders["llama"]
    if tokens is None:
        (tmp_path / DRAFT).write_bytes(b"nothing")
    else:
        save_file({FREQUENT_TOKENS: tokens}, tmp_path / DRAFT)
    with pytest.raises(UnsupportedCheckpoint, match=message):
        make_head(loaded(folder), open_checkpoint(folder), tmp_path)


def test_a_list_under_another_name(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    save_file({"tokens": np.array([1], dtype=np.int32)}, tmp_path / DRAFT)
    with pytest.raises(UnsupportedCheckpoint, match="frequent_tokens"):
        make_head(loaded(tiny_folders["llama"]), open_checkpoint(tiny_folders["llama"]), tmp_path)


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_drafted_past_the_draft_models_window(tiny_folders: dict[str, Path], place: str) -> None:
    folder = tiny_folders["llama"]
    draft = draft_on(place, folder, max_positions=48)
    harness = Harness(model_of(folder), speculator=Speculator([draft], FixedDepth(8)))
    request: Request = harness.add(prompt(30), SamplingParams(temperature=0, ignore_eos=True), max_tokens=60)
    alone = Harness(model_of(folder))
    alone.add(prompt(30), max_tokens=60)
    assert harness.run()["0"].tokens == alone.run()["0"].tokens
    usage = usage_of(harness.results[request.id])
    assert 0 < usage.draft_tokens < 30
