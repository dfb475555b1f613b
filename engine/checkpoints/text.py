"""Builds the text processor of a checkpoint: a Hugging Face folder or a GGUF file's metadata."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.checkpoints.gguf import tokenizer as gguf_tokenizer
from engine.checkpoints.gguf.vocabulary import read_vocabulary
from engine.checkpoints.huggingface import tokenizer as folder_tokenizer
from engine.models.config import UnsupportedCheckpoint
from engine.text.chat_template import ChatTemplate, ChatTemplateError
from engine.text.processor import TextProcessor

_GGUF_TEMPLATE = "tokenizer.chat_template"


def text_processor_from_folder(folder: Path) -> TextProcessor:
    """The text processor of a Hugging Face folder.

    Raises:
        UnsupportedCheckpoint: a file or a key is missing, malformed or not supported; the message names it.
    """
    config = folder_tokenizer.read_config(folder)
    tokenizer = folder_tokenizer.build_tokenizer(folder, config)
    sources = folder_tokenizer.template_sources(folder, config)
    template = _template("chat_template", sources, folder_tokenizer.named_tokens(config))
    return TextProcessor(tokenizer, template)


def text_processor_from_gguf(metadata: Mapping[str, Any]) -> TextProcessor:
    """The text processor of a GGUF file. `metadata`: its key-value section; arrays may be sequences or numpy arrays.

    Raises:
        UnsupportedCheckpoint: a key is missing, malformed or not supported; the message names it.
    """
    vocabulary = read_vocabulary(metadata)
    tokenizer = gguf_tokenizer.build_tokenizer(vocabulary)
    keys = {"default": _GGUF_TEMPLATE, "tool_use": f"{_GGUF_TEMPLATE}.tool_use"}
    sources = {name: metadata[key] for name, key in keys.items() if metadata.get(key) is not None}
    for name, source in sources.items():
        if not isinstance(source, str):
            raise UnsupportedCheckpoint(f"{keys[name]}: expected a string, got {type(source).__name__}")
    return TextProcessor(tokenizer, _template(_GGUF_TEMPLATE, sources, vocabulary.named_tokens()))


def _template(key: str, sources: Mapping[str, str], named_tokens: Mapping[str, str]) -> ChatTemplate | None:
    if not sources:
        return None
    if "default" not in sources:
        raise UnsupportedCheckpoint(f"{key}: none of {', '.join(sorted(sources))} is named 'default'")
    try:
        return ChatTemplate(sources["default"], named_tokens, tool_source=sources.get("tool_use"))
    except ChatTemplateError as error:
        raise UnsupportedCheckpoint(f"{key}: {error}") from error
