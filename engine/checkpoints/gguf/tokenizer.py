"""Builds a `Tokenizer` from a GGUF vocabulary, with token ids equal to llama.cpp's."""

from collections.abc import Iterator, Sequence

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from engine.checkpoints.gguf.vocabulary import GGUFVocabulary, TokenType
from engine.models.config import UnsupportedCheckpoint
from engine.text.leftmost_merges import LeftmostMerges
from engine.text.pieces import UnsupportedTokenizer
from engine.text.pretokenizers import RULES, splitter
from engine.text.tokenizer import Tokenizer

_SPACE_MARK = "▁"


def build_tokenizer(vocabulary: GGUFVocabulary) -> Tokenizer:
    """The tokenizer of a GGUF vocabulary.

    Raises:
        UnsupportedCheckpoint: the tokenizer model or the pre-tokenizer is unknown, or the merges are malformed.
    """
    merges = None
    if vocabulary.kind == "gpt2":
        backend, adds_bos = _byte_level(vocabulary)
    elif vocabulary.kind == "llama":
        merges = _leftmost_merges(vocabulary)
        backend, adds_bos = _sentencepiece(vocabulary, merged_before=merges is not None), True
    elif vocabulary.kind == "gemma4":
        backend, adds_bos = _gemma4(vocabulary), True
    else:
        raise UnsupportedCheckpoint(f"tokenizer.ggml.model: {vocabulary.kind!r} is not supported (gpt2, llama, gemma4)")
    special_ids = vocabulary.special_ids()
    _add_tokens(backend, vocabulary, special_ids)
    if vocabulary.add_bos is not None and vocabulary.kind != "gemma4":  # which llama.cpp always begins so
        adds_bos = vocabulary.add_bos
    if adds_bos and vocabulary.bos_id is None:
        raise UnsupportedCheckpoint("tokenizer.ggml.bos_token_id: missing, though the model adds it to texts")
    try:
        return Tokenizer(
            backend,
            special_ids=special_ids,
            bos_token_id=vocabulary.bos_id,
            eos_token_ids=vocabulary.eos_ids,
            unk_token_id=vocabulary.unk_id,
            prefix_ids=[vocabulary.bos_id] if adds_bos and vocabulary.bos_id is not None else (),
            suffix_ids=vocabulary.eos_ids[:1] if vocabulary.add_eos else (),
            merges=merges,
            vocab_size=len(vocabulary.tokens),
        )
    except UnsupportedTokenizer as error:
        raise UnsupportedCheckpoint(f"tokenizer.ggml.tokens: {error}") from error


def _add_tokens(backend: Backend, vocabulary: GGUFVocabulary, special_ids: Sequence[int]) -> None:
    tokens = vocabulary.tokens
    backend.add_special_tokens([AddedToken(tokens[index], special=True, normalized=False) for index in special_ids])
    special = set(special_ids)
    backend.add_tokens(
        [
            AddedToken(tokens[index], special=False, normalized=False)
            for index in vocabulary.ids_of_types(TokenType.USER_DEFINED)
            if index not in special
        ]
    )


def _byte_level(vocabulary: GGUFVocabulary) -> tuple[Backend, bool]:
    rule = RULES.get(vocabulary.pre)
    if rule is None:
        raise UnsupportedCheckpoint(f"tokenizer.ggml.pre: {vocabulary.pre!r} is not supported")
    if not vocabulary.merges:
        raise UnsupportedCheckpoint("tokenizer.ggml.merges: missing or empty")
    merges = _pairs(vocabulary.merges)
    backend = Backend(_bpe(vocabulary, merges, ignore_merges=rule.ignores_merges))
    backend.pre_tokenizer = splitter(rule)
    backend.decoder = decoders.ByteLevel()
    return backend, rule.adds_bos


def _pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    parts = [merge.split(" ") for merge in merges]
    if set(map(len, parts)) == {2}:
        return [(left, right) for left, right in parts]
    return [_pair(merge) for merge in merges]


def _pair(merge: str) -> tuple[str, str]:
    """The two parts of a merge. A part may begin with a space, so the separator is the first space after the first
    character."""
    cut = merge.find(" ", 1)
    if cut < 0 or cut == len(merge) - 1:
        raise UnsupportedCheckpoint(f"tokenizer.ggml.merges: {merge!r} is not a pair")
    return merge[:cut], merge[cut + 1 :]


def _sentencepiece(vocabulary: GGUFVocabulary, *, merged_before: bool) -> Backend:
    """`merged_before`: a custom pre-tokenizer has applied the merges."""
    unknown = None if vocabulary.unk_id is None else vocabulary.tokens[vocabulary.unk_id]
    merges = _merges_from_scores(vocabulary)
    backend = Backend(
        _bpe(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True, ignore_merges=merged_before)
    )
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE_MARK)]
    text: list[decoders.Decoder] = [decoders.Replace(_SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_space_prefix:
        spaces.insert(0, normalizers.Prepend(_SPACE_MARK))
        text.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence(text)
    return backend


def _gemma4(vocabulary: GGUFVocabulary) -> Backend:
    """Ranked merges over lines with marks for spaces. A run of line feeds that is a token is matched before."""
    if not vocabulary.merges:
        raise UnsupportedCheckpoint("tokenizer.ggml.merges: missing or empty")
    unknown = None if vocabulary.unk_id is None else vocabulary.tokens[vocabulary.unk_id]
    backend = Backend(_bpe(vocabulary, _pairs(vocabulary.merges), unk_token=unknown, fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", _SPACE_MARK)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(_SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    runs = [token for token in vocabulary.tokens if not token.strip("\n")]
    backend.add_tokens([AddedToken(run, special=False, normalized=False) for run in runs])
    return backend


def _leftmost_merges(vocabulary: GGUFVocabulary) -> LeftmostMerges | None:
    """The custom pre-tokenizer if tokens have equal scores; None if the library's ranking of pairs is equivalent."""
    if not vocabulary.scores:
        raise UnsupportedCheckpoint("tokenizer.ggml.scores: missing or empty")
    scores = {token: vocabulary.scores[index] for index, token in _spelled(vocabulary) if len(token) > 1}
    if len(set(scores.values())) == len(scores):
        return None
    return LeftmostMerges(scores, frozenset(token for token in vocabulary.tokens if len(token) == 1))


def _spelled(vocabulary: GGUFVocabulary) -> Iterator[tuple[int, str]]:
    """Tokens that result from merges, with their ids."""
    spelled = {TokenType.NORMAL, TokenType.UNUSED, TokenType.UNDEFINED}
    special = set(vocabulary.special_ids())
    for index, token in enumerate(vocabulary.tokens):
        if vocabulary.types[index] in spelled and index not in special:
            yield index, token


def _merges_from_scores(vocabulary: GGUFVocabulary) -> list[tuple[str, str]]:
    """Merges ranked as SentencePiece does, by the score of the resulting token.

    Only ordinary tokens result from merges, never a control token.
    """
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    ranked: list[tuple[float, int, int, str, str]] = []
    for index, token in _spelled(vocabulary):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-vocabulary.scores[index], ids[left], ids[right], left, right))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _bpe(
    vocabulary: GGUFVocabulary,
    merges: list[tuple[str, str]],
    *,
    unk_token: str | None = None,
    fuse_unk: bool = False,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> BPE:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    try:
        return BPE(
            vocab=ids,
            merges=merges,
            unk_token=unk_token,
            fuse_unk=fuse_unk,
            byte_fallback=byte_fallback,
            ignore_merges=ignore_merges,
        )
    except Exception as error:  # the extension raises bare `Exception`
        raise UnsupportedCheckpoint(f"tokenizer.ggml.merges: {error}") from error
