"""Hugging Face folders: the same ids and text as transformers, and refusals that name the key."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from engine.checkpoints.text import text_processor_from_folder
from engine.models.config import UnsupportedCheckpoint
from tests.engine.text.corpus import CORPUS
from tests.engine.text.folders import CHATML, byte_level_folder, llama2_folder

MESSAGES = [
    {"role": "user", "content": "hello there"},
    {"role": "assistant", "content": "  the dog\n"},
    {"role": "user", "content": "over 12 日本 <think>"},
]


@pytest.mark.parametrize("make", [byte_level_folder, llama2_folder])
def test_equals_transformers(make: Callable[[Path], PreTrainedTokenizerBase], tmp_path: Path) -> None:
    oracle = make(tmp_path)
    processor = text_processor_from_folder(tmp_path)
    assert processor.tokenizer.vocab_size == len(oracle)
    assert processor.tokenizer.bos_token_id == oracle.bos_token_id
    assert processor.tokenizer.eos_token_id == oracle.eos_token_id
    assert processor.tokenizer.special_ids == set(oracle.all_special_ids) | {0, 1, 2}
    for text in CORPUS:
        ids = processor.encode(text)
        assert ids == oracle(text, split_special_tokens=True).input_ids, ascii(text)
        for skip in (True, False):
            expected = oracle.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert processor.decode(ids, skip_special_tokens=skip) == expected
    expected = oracle.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    assert processor.encode_chat(MESSAGES) == expected


def rewrite(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**value, **changes}), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_level_folder(tmp_path)
    return tmp_path


def test_bos_is_added_as_the_config_says(folder: Path) -> None:
    assert text_processor_from_folder(folder).encode("a")[0] == 0
    rewrite(folder / "tokenizer_config.json", add_bos_token=False, add_eos_token=True)
    processor = text_processor_from_folder(folder)
    assert processor.encode("a") == [*processor.encode("a", add_special_tokens=False), 2]


def test_truncation_and_padding_in_the_file_are_ignored(folder: Path) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 99},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|bos|>",
    }
    rewrite(folder / "tokenizer.json", truncation=truncation, padding=padding)
    processor = text_processor_from_folder(folder)
    assert processor.decode(processor.encode("one two three four")) == "one two three four"
    assert len(processor.encode("one two three four")) < 50


def test_special_tokens_that_only_the_config_knows(folder: Path) -> None:
    rewrite(folder / "special_tokens_map.json", additional_special_tokens=["<think>"])
    tokenizer = text_processor_from_folder(folder).tokenizer
    think = tokenizer.special_texts["<think>"]
    assert think not in tokenizer.encode("a<think>b", add_special_tokens=False)
    assert think in tokenizer.encode_template("a<think>b")


def test_listed_tokens_are_added(folder: Path) -> None:
    size = text_processor_from_folder(folder).tokenizer.vocab_size
    listed = {str(size): {"content": "<|new|>", "special": True}}
    rewrite(folder / "tokenizer_config.json", added_tokens_decoder=listed)
    assert text_processor_from_folder(folder).tokenizer.special_texts["<|new|>"] == size


@pytest.mark.parametrize("form", ["file", "string", "list"])
def test_where_the_chat_template_may_stand(folder: Path, form: str) -> None:
    if form == "file":
        rewrite(folder / "tokenizer_config.json", chat_template="not this one")
    else:
        (folder / "chat_template.jinja").unlink()
        named = [{"name": "tool_use", "template": "tools!"}, {"name": "default", "template": CHATML}]
        rewrite(folder / "tokenizer_config.json", chat_template=CHATML if form == "string" else named)
    processor = text_processor_from_folder(folder)
    ids = processor.encode_chat([{"role": "user", "content": "hi"}], add_generation_prompt=False)
    assert processor.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nhi<|im_end|>\n"
    with_tools = processor.encode_chat([{"role": "user", "content": "hi"}], tools=[{"type": "function"}])
    assert (processor.decode(with_tools) == "tools!") == (form == "list")


def test_no_chat_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert text_processor_from_folder(folder).chat_template is None


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, "tokenizer.json"),
        ("tokenizer.json", {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}, "decoder"),
        ("tokenizer.json", {"decoder": None}, "decoder"),
        ("tokenizer_config.json", {"eos_token": 7}, "eos_token"),
        ("tokenizer_config.json", {"chat_template": 7}, "chat_template"),
        ("tokenizer_config.json", {"chat_template": [{"name": "x"}]}, "chat_template"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "<|bos|>"}}}, "added_tokens_decoder"),
        ("tokenizer_config.json", {"additional_special_tokens": [1]}, "additional_special_tokens"),
    ],
)
def test_refusals_name_the_key(folder: Path, file: str, changes: dict[str, Any], named: str) -> None:
    rewrite(folder / file, **changes)
    with pytest.raises(UnsupportedCheckpoint, match=named):
        text_processor_from_folder(folder)


@pytest.mark.parametrize("content", ["{", "[]", "\ud800"])
def test_a_config_that_is_no_json_object(folder: Path, content: str) -> None:
    (folder / "tokenizer_config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(UnsupportedCheckpoint, match="tokenizer_config"):
        text_processor_from_folder(folder)


def test_a_template_that_is_no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for %}", encoding="utf-8")
    with pytest.raises(UnsupportedCheckpoint, match="chat_template"):
        text_processor_from_folder(folder)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"tokenizer\.json: missing$"):
        text_processor_from_folder(tmp_path)
    (tmp_path / "tiktoken.model").write_bytes(b"IQ== 0\n")  # as Kimi K2's folder has
    with pytest.raises(UnsupportedCheckpoint, match=r"tokenizer\.json: missing; tiktoken\.model is not read"):
        text_processor_from_folder(tmp_path)
