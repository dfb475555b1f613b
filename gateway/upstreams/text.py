"""The text processor of an upstream model."""

from copy import copy
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from engine.checkpoints.text import text_processor_from_folder
from engine.models.config import UnsupportedCheckpoint
from engine.text.tokenizer import Tokenizer
from gateway.errors import OperatorError
from gateway.generation.remote_prompt import RemoteText, bytes_of


class LabelTokenizer(Tokenizer):
    """A tokenizer that also knows the ids below 0, which contain the text of a server's token."""

    @classmethod
    def over(cls, tokenizer: Tokenizer) -> "LabelTokenizer":
        """The same vocabulary."""
        labelled = copy(tokenizer)
        labelled.__class__ = cls
        assert isinstance(labelled, cls)
        return labelled

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return bytes_of(token_id) if token_id < 0 else super().token_bytes(token_id)


def upstream_text(name: str, path: Path | None) -> RemoteText:
    """The text processor of the upstream NAME. `path`: a Hugging Face folder, or a `tokenizer.json` in one.

    Raises:
        OperatorError: there is no tokenizer at the path.
    """
    if path is None:
        return RemoteText(LabelTokenizer.over(_bytes()), None)
    folder = path.parent if path.is_file() else path
    try:
        counting = text_processor_from_folder(folder)
    except (UnsupportedCheckpoint, OSError) as error:
        raise OperatorError(f"upstreams.{name}: tokenizer {path}: {error}") from error
    return RemoteText(LabelTokenizer.over(counting.tokenizer), counting.chat_template, counting)


def _bytes() -> Tokenizer:
    """A vocabulary of single bytes, where the model's own is not known. It counts nothing."""
    alphabet = sorted(ByteLevel.alphabet())
    backend = Backend(BPE({character: i for i, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    return Tokenizer(backend, special_ids=())
