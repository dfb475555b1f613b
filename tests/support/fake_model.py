"""Stand-ins for a served model: a tokenizer whose tokens are bytes, a chat template and an infilling format."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.runtime.model_details import ModelDetails
from engine.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from engine.text.chat_template import ChatTemplateError
from engine.text.dialect import Dialect
from engine.text.least_tokens import TooManyTokens

BOS = 256
END = 257
VOCAB_SIZE = 258


class FakeTokenizer:
    def token_bytes(self, token_id: int) -> bytes:
        return {BOS: b"<s>", END: b"</s>"}.get(token_id) or bytes([token_id])

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        shown = [i for i in token_ids if i < BOS or not skip_special_tokens]
        return b"".join(map(self.token_bytes, shown)).decode("utf-8", "replace")


class FakeInfilling:
    """`[before|behind]`, ended by `~`."""

    ends = (ord("~"),)

    def encode(
        self, before: str, behind: str, *, add_special_tokens: bool = True, most_tokens: int | None = None
    ) -> list[int]:
        return [*([BOS] * add_special_tokens), *f"[{before}|{behind}]".encode()]


class FakeText:
    """`<role>content\\n` for each message. The word TEMPLATE-REFUSES makes the template refuse."""

    def __init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.dialect = Dialect(knows_tools=True)
        self.infilling: FakeInfilling | None = None
        self.variables: set[str] = set()
        """Variables that the template reads."""

    def encode(self, text: str, *, add_special_tokens: bool = True, most_tokens: int | None = None) -> list[int]:
        _require_at_most(most_tokens, text)
        return [BOS] * add_special_tokens + list(text.encode())

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        most_tokens: int | None = None,
        **variables: Any,
    ) -> list[int]:
        rendered = "".join(f"<{m['role']}>{_plain(m['content'])}\n" for m in messages)
        rendered += "".join(f"[{name}={value}]" for name, value in variables.items())
        if continue_final_message:
            rendered = rendered.removesuffix("\n")
        if "TEMPLATE-REFUSES" in rendered:
            raise ChatTemplateError("roles must alternate")
        _require_at_most(most_tokens, rendered)
        return [BOS, *(rendered + "<assistant>" * add_generation_prompt).encode()]

    def template_reads(self, variable: str) -> bool:
        return variable in self.variables

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


def _require_at_most(most_tokens: int | None, text: str) -> None:
    """As a tokenizer that knows of long texts, from half of their tokens on."""
    if most_tokens is not None and len(text.encode()) // 2 > most_tokens:
        raise TooManyTokens(len(text.encode()) // 2)


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""


@dataclass(frozen=True)
class FakeModel:
    name: str
    max_model_len: int
    text: FakeText = field(default_factory=FakeText)
    vocab_size: int = VOCAB_SIZE
    created: int = 1_700_000_000
    version: str = "f00d"
    sampling_defaults: SamplingDefaults = NO_DEFAULTS
    details: ModelDetails | None = None

    @property
    def windows(self) -> Mapping[str, int]:
        return defaultdict(lambda: self.max_model_len)
