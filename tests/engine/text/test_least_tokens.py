"""A text never has fewer tokens than is said of it without tokenising; and much text is known to have many."""

import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from engine.checkpoints.text import text_processor_from_folder
from engine.text.least_tokens import NFC_SHRINKS_TO, TooManyTokens
from engine.text.processor import TextProcessor
from engine.text.tokenizer import Tokenizer
from tests.engine.text.folders import byte_level_backend, byte_level_folder, llama2_folder

BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)


def composing(*added: AddedToken) -> Tokenizer:
    """As Qwen's: NFC, then bytes."""
    backend = byte_level_backend()
    backend.normalizer = normalizers.NFC()
    backend.add_tokens(list(added))
    return Tokenizer(backend, special_ids=[0, 1, 2])


@pytest.fixture(scope="session")
def tokenizers(smollm2: TextProcessor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folders: dict[str, Path] = {name: tmp_path_factory.mktemp(name) for name in ("byte_level", "llama2")}
    byte_level_folder(folders["byte_level"])
    llama2_folder(folders["llama2"])
    return {
        "smollm2": smollm2.tokenizer,
        **{name: text_processor_from_folder(folder).tokenizer for name, folder in folders.items()},
        "composing": composing(),
        "stripping": composing(AddedToken("<gap>", lstrip=True, rstrip=True, normalized=False)),
    }


NAMES = ("smollm2", "byte_level", "llama2", "composing", "stripping")
ODD = st.sampled_from(
    [
        *("<|im_start|>", "<|im_end|>", "</s>", "<s>", "<think>", "<gap>", "<0x41>", "▁", "\ud800", "\u212a", "\u0301"),
        *(" " * 40, "\n" * 40, "-" * 90, "=" * 90, "0123456789", "e\u0301\u0323", "가", "\U0001d15e"),
        *("\u1100\u1161\u11a8", "\u03b1\u0313\u0300\u0345", "https://www.", "    return self."),
    ]
)
texts = st.lists(st.text() | ODD | st.text("abc .1") | st.integers().map(str), max_size=12).map("".join)
repeated = st.tuples(texts, st.integers(1, 30)).map(lambda each: each[0] * each[1])


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=300)
@given(text=repeated)
@example(text="e\u0301" * 500)
@example(text="\u212a" * 500)
@example(text="\n" + " " * 2000)
@example(text="<gap>" + " \u3000\n" * 500)
@example(text="<|im_start|>" * 100)
def test_no_text_has_fewer_tokens(tokenizers: dict[str, Tokenizer], name: str, text: str) -> None:
    tokenizer = tokenizers[name]
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode_template(text))


@pytest.mark.parametrize(
    ("name", "text", "share"),
    [
        ("smollm2", "0123456789" * 1000, 0.99),
        ("smollm2", "的一是不" * 1000, 0.1),
        ("smollm2", "the quick brown fox jumps over " * 300, 0.04),
        ("llama2", "0123456789" * 1000, 0.5),
        ("composing", "0123456789" * 1000, 0.3),
    ],
)
def test_of_much_text_much_is_known(tokenizers: dict[str, Tokenizer], name: str, text: str, share: float) -> None:
    tokenizer = tokenizers[name]
    assert tokenizer.least_tokens(text) >= share * len(tokenizer.encode(text, add_special_tokens=False))


def test_what_surely_does_not_fit_is_not_tokenised(smollm2: TextProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "_library_ids", None)
    digits = "7" * 10_000
    for encode in (
        lambda: smollm2.encode(digits, most_tokens=9_000),
        lambda: smollm2.encode_chat([{"role": "user", "content": digits}], most_tokens=9_000),
    ):
        with pytest.raises(TooManyTokens) as refused:
            encode()
        assert 9_900 <= refused.value.at_least <= 10_100


def test_what_may_fit_is_tokenised(smollm2: TextProcessor) -> None:
    digits = "7" * 10_000
    assert len(smollm2.encode(digits, most_tokens=10_000)) == 10_000
    assert smollm2.encode("word " * 1000, most_tokens=900) == smollm2.encode("word " * 1000)


def tokenizer_of(
    model: models.Model, normalizer: normalizers.Normalizer | None, split: pre_tokenizers.PreTokenizer | None
) -> Tokenizer:
    backend = Backend(model)
    if normalizer is not None:
        backend.normalizer = normalizer
    if split is not None:
        backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, special_ids=[])


ALPHABET = {char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
REMOVING = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\s"), "removed"), BYTE_LEVEL])


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [
        (tokenizer_of(models.BPE(ALPHABET, []), normalizers.NFKC(), BYTE_LEVEL), "\U0001d400"),
        (tokenizer_of(models.BPE(ALPHABET, []), normalizers.Strip(), BYTE_LEVEL), " "),
        (tokenizer_of(models.BPE(ALPHABET, []), normalizers.Replace(Regex(" +"), " "), BYTE_LEVEL), " "),
        (tokenizer_of(models.BPE(ALPHABET, []), None, REMOVING), " "),
        (tokenizer_of(models.BPE({"a": 0, "?": 1}, [], unk_token="?", fuse_unk=True), None, None), "é"),
        (tokenizer_of(models.BPE({"a": 0}, []), None, BYTE_LEVEL), "b"),
    ],
)
def test_where_text_may_be_lost_nothing_is_said(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.least_tokens(text * 1000) <= len(tokenizer.encode(text * 1000, add_special_tokens=False))


def test_nfc_shrinks_no_text_to_less() -> None:
    """Of each character that NFC makes: the most bytes of what it is made of, each in its longest form."""
    longest: dict[str, int] = {}
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
    canonical = [(char, unicodedata.normalize("NFD", char)) for char in characters]
    for char, parts in canonical:
        if len(parts) == 1:
            longest[parts] = max(longest.get(parts, 0), len(char.encode()))
    for char, parts in canonical:
        most = sum(longest[part] for part in parts)
        assert len(char.encode()) <= most
        if unicodedata.normalize("NFC", char) == char:
            assert len(char.encode()) >= NFC_SHRINKS_TO * most, hex(ord(char))
