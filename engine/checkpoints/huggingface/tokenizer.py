"""Tokenizer and chat template of a Hugging Face folder.

Files: `tokenizer.json` (required), `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja` and
`additional_chat_templates/tool_use.jinja`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from engine.models.config import UnsupportedCheckpoint
from engine.text.pieces import UnsupportedTokenizer
from engine.text.tokenizer import Tokenizer

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_OTHER_FORMATS = ("tiktoken.model", "tokenizer.model", "vocab.json")
"""Files of other tokenizers, which folders may have in its place."""
_CONFIG = "tokenizer_config.json"


def read_config(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json` merged over `special_tokens_map.json`; empty if there is neither."""
    return {**_read_object(folder / "special_tokens_map.json"), **_read_object(folder / _CONFIG)}


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnsupportedCheckpoint(f"{path.name}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedCheckpoint(f"{path.name}: expected an object")
    return value


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special token variables of the chat template, such as `bos_token`. Each is a string or an object with
    `content`."""
    named = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        content = value.get("content") if isinstance(value, Mapping) else value
        if content is None:
            continue
        if not isinstance(content, str):
            raise UnsupportedCheckpoint(f"{_CONFIG}: {name} is not a token")
        named[name] = content
    return named


def build_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a folder.

    Raises:
        UnsupportedCheckpoint: `tokenizer.json` is missing or malformed, or a key names a token that it lacks.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        others = [name for name in _OTHER_FORMATS if (folder / name).is_file()]
        raise UnsupportedCheckpoint(f"tokenizer.json: missing{''.join(f'; {name} is not read' for name in others)}")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the extension raises bare `Exception`
        raise UnsupportedCheckpoint(f"tokenizer.json: {error}") from error
    named = named_tokens(config)
    _add_listed_tokens(backend, config)
    special = _mark_special(backend, [*named.values(), *_additional(config)])
    ids = {name: backend.token_to_id(text) for name, text in named.items()}
    bos_id, eos_id = ids.get("bos_token"), ids.get("eos_token")
    prefix, suffix = _surroundings(backend, config, bos_id, eos_id)
    try:
        return Tokenizer(
            backend,
            special_ids=special,
            bos_token_id=bos_id,
            eos_token_ids=() if eos_id is None else (eos_id,),
            unk_token_id=ids.get("unk_token"),
            prefix_ids=prefix,
            suffix_ids=suffix,
        )
    except UnsupportedTokenizer as error:
        raise UnsupportedCheckpoint(f"tokenizer.json: {error}") from error


def _add_listed_tokens(backend: Backend, config: Mapping[str, Any]) -> None:
    """Add tokens of `added_tokens_decoder` that `tokenizer.json` lacks. Their ids must equal the listed ones."""
    listed = config.get("added_tokens_decoder", {})
    if not isinstance(listed, Mapping):
        raise UnsupportedCheckpoint(f"{_CONFIG}: added_tokens_decoder is not an object")
    try:
        entries = sorted((int(key), dict(value)) for key, value in listed.items())
        contents = [(token_id, str(entry["content"]), bool(entry.get("special"))) for token_id, entry in entries]
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedCheckpoint(f"{_CONFIG}: added_tokens_decoder is malformed: {error}") from error
    for token_id, content, special in contents:
        if special or backend.token_to_id(content) is None:
            backend.add_tokens([AddedToken(content, special=special, normalized=False)])
        if backend.token_to_id(content) != token_id:
            raise UnsupportedCheckpoint(f"{_CONFIG}: added_tokens_decoder gives {content!r} another id, {token_id}")


def _additional(config: Mapping[str, Any]) -> list[str]:
    texts: list[str] = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        value = config.get(name) or ()
        for item in value.values() if isinstance(value, Mapping) else value:
            content = item.get("content") if isinstance(item, Mapping) else item
            if not isinstance(content, str):
                raise UnsupportedCheckpoint(f"{_CONFIG}: {name} holds something that is not a token")
            texts.append(content)
    return texts


def _mark_special(backend: Backend, named: list[str]) -> list[int]:
    """Ids of tokens flagged as special, and of named tokens, which are flagged here."""
    ids = {text: backend.token_to_id(text) for text in named}
    known = {text: token_id for text, token_id in ids.items() if token_id is not None}
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in known])
    flagged = (index for index, token in backend.get_added_tokens_decoder().items() if token.special)
    return sorted({*flagged, *known.values()})


def _surroundings(
    backend: Backend, config: Mapping[str, Any], bos_id: int | None, eos_id: int | None
) -> tuple[list[int], list[int]]:
    """Tokens around a text: by `add_bos_token` and `add_eos_token` if given, else by the post-processor."""
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    starts = [start for start in range(len(full) - len(bare) + 1) if full[start : start + len(bare)] == bare]
    start = starts[0] if bare and starts else 0
    prefix, suffix = full[:start], full[start + len(bare) :]
    if isinstance(config.get("add_bos_token"), bool):
        prefix = [bos_id] if config["add_bos_token"] and bos_id is not None else []
    if isinstance(config.get("add_eos_token"), bool):
        suffix = [eos_id] if config["add_eos_token"] and eos_id is not None else []
    return prefix, suffix


def template_sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name: "default", and "tool_use" if there is one. Files take precedence over the config's
    key."""
    named = named_sources(f"{_CONFIG}: chat_template", config.get("chat_template"))
    files = {
        "default": folder / "chat_template.jinja",
        "tool_use": folder / "additional_chat_templates" / "tool_use.jinja",
    }
    try:
        named.update({name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()})
    except UnicodeDecodeError as error:
        raise UnsupportedCheckpoint(f"chat_template.jinja: {error}") from error
    return named


def named_sources(key: str, value: Any) -> dict[str, str]:
    """The templates of a config value: a string, or a list of objects with `name` and `template`."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        named = {item.get("name"): item.get("template") for item in value}
        if all(isinstance(text, str) for pair in named.items() for text in pair):
            return {str(name): str(template) for name, template in named.items()}
    raise UnsupportedCheckpoint(f"{key}: neither a string nor a list of named templates")
