import json
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from engine.text.pieces import UnsupportedTokenizer, byte_fallback_bytes, byte_level_bytes
from engine.text.processor import TextProcessor
from engine.text.tokenizer import Tokenizer


def backend(*, ignore_merges: bool = False) -> Backend:
    """Merges that spell the control token `ab`."""
    made = Backend(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")], ignore_merges=ignore_merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("ab", special=True, normalized=False)])
    return made


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_merges_that_spell_a_special_token_are_cut(ignore_merges: bool) -> None:
    tokenizer = Tokenizer(backend(ignore_merges=ignore_merges), special_ids=[2])
    assert tokenizer.encode("aabba", add_special_tokens=False) == [0, 0, 1, 1, 0]
    assert tokenizer.encode("ab", add_special_tokens=False) == [0, 1]
    assert tokenizer.encode_template("aabba") == [0, 2, 1, 0]


def test_an_unknown_character_may_be_the_unknown_token() -> None:
    made = Backend(models.BPE(vocab={"?": 0, "a": 1}, merges=[], unk_token="?"))
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("?", special=True, normalized=False)])
    tokenizer = Tokenizer(made, special_ids=[0], unk_token_id=0)
    assert tokenizer.encode("aé", add_special_tokens=False) == [1, 0]


@settings(deadline=None)
@given(st.text())
def test_typed_text_is_only_text(smollm2: TextProcessor, text: str) -> None:
    typed = f"{text}<|im_start|>{text}"
    ids = smollm2.encode(typed)
    assert smollm2.tokenizer.special_ids.isdisjoint(ids)
    assert all(map(smollm2.tokenizer.is_valid, ids))


def test_template_text_has_genuine_special_tokens(smollm2: TextProcessor) -> None:
    encode = smollm2.tokenizer.encode_template
    assert encode("<|im_start|>user\n<|im_end|>") == [1, *smollm2.encode("user\n"), 2]
    assert encode("<#|im_start|><|im_start|>", mark="#") == [*smollm2.encode("<|im_start|>"), 1]


def test_lone_surrogates_become_replacement_characters(smollm2: TextProcessor) -> None:
    assert smollm2.decode(smollm2.encode("a\ud800b")) == "a\ufffdb"


def test_token_bytes_are_exact(smollm2: TextProcessor, sentencepiece: TextProcessor) -> None:
    for processor in (smollm2, sentencepiece):
        text = "héllo 👍 the\n"
        ids = processor.encode(text, add_special_tokens=False)
        joined = b"".join(processor.tokenizer.token_bytes(token_id) for token_id in ids)
        assert joined.removeprefix(b" ").decode() == text
    assert smollm2.tokenizer.token_bytes(1) == b"<|im_start|>"
    assert smollm2.tokenizer.token_bytes(smollm2.encode("👍")[0]) == b"\xf0\x9f"
    assert sentencepiece.tokenizer.token_bytes(3) == b"\x00"


def test_bytes_of_pieces() -> None:
    assert byte_level_bytes("Ġa") == b" a"
    assert byte_level_bytes("Ã©") == "é".encode()
    assert byte_level_bytes("a b") == b"a b"
    assert byte_level_bytes("日") == "日".encode()
    assert byte_fallback_bytes("<0xFf>") == b"\xff"
    assert byte_fallback_bytes("<0xFFF>") == b"<0xFFF>"
    assert byte_fallback_bytes("▁a▁") == b" a "


def test_ids_without_a_token_have_no_text(smollm2: TextProcessor) -> None:
    size = smollm2.tokenizer.vocab_size
    assert not smollm2.tokenizer.is_valid(size)
    assert not smollm2.tokenizer.is_valid(-1)
    assert smollm2.decode([-1, size + 100, *smollm2.encode("a")]) == "a"


def test_carriers_are_never_seen(smollm2: TextProcessor) -> None:
    """Their ids are in the padding of output layers, so a model may draw them, and be made to. A client that knew their
    text could type special tokens."""
    tokenizer = smollm2.tokenizer
    padding = range(tokenizer.vocab_size, tokenizer.vocab_size + 200)
    assert smollm2.decode(padding, skip_special_tokens=False) == ""
    assert not any(tokenizer.token_bytes(token) or tokenizer.visible_pieces[token] for token in padding)


def test_decoding_equals_the_librarys(smollm2: TextProcessor) -> None:
    library = Backend.from_str(smollm2.tokenizer.to_json())
    ids = list(range(0, 49_152, 7))
    for skip in (True, False):
        assert smollm2.decode(ids, skip_special_tokens=skip) == library.decode(ids, skip_special_tokens=skip)


def test_json_has_no_carriers(smollm2: TextProcessor) -> None:
    spec = json.loads(smollm2.tokenizer.to_json())
    assert [token["id"] for token in spec["added_tokens"]] == list(range(17))
    library = Backend.from_str(smollm2.tokenizer.to_json())
    assert library.get_vocab_size() == smollm2.tokenizer.vocab_size
    assert library.encode("<|im_start|>12 a").ids == smollm2.tokenizer.encode_template("<|im_start|>12 a")


def test_a_decoder_that_joins_in_another_way_is_refused() -> None:
    made = backend()
    made.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedTokenizer, match="WordPiece"):
        Tokenizer(made, special_ids=[2])


def test_a_long_text_leaves_other_threads_running(smollm2: TextProcessor) -> None:
    """The engine's thread does not wait while another request's long prompt is tokenised."""
    encoder = threading.Thread(target=smollm2.encode, args=("hello world 123 " * 20_000,))
    encoder.start()
    turns = 0
    while encoder.is_alive():
        turns += 1
        time.sleep(0.001)
    assert turns > 10


def byte_level(text: str) -> Tokenizer:
    return Tokenizer(backend(), special_ids=[2], eos_token_ids=[2], suffix_ids=[1] if text else [])


def test_tokenizers_that_do_the_same_share_their_memory() -> None:
    first, second = byte_level(""), byte_level("closed")
    assert not first.shares_with(second)
    shared = second.sharing(first)
    assert shared.shares_with(first)
    assert shared.pieces is first.pieces
    assert shared.encode_template("aabba") == [0, 2, 1, 0]
    assert shared.decode([0, 2, 1], skip_special_tokens=False) == "aabb"
    assert shared.encode("a", add_special_tokens=True) == [0, 1]  # what is around a text is its own
    assert first.encode("a", add_special_tokens=True) == [0]
    assert json.loads(shared.to_json()) == json.loads(second.to_json())


def test_tokenizers_that_merge_otherwise_share_nothing() -> None:
    plain = Tokenizer(backend(), special_ids=[2])
    assert plain.sharing(Tokenizer(backend(ignore_merges=True), special_ids=[2])) is None
    assert plain.sharing(Tokenizer(backend(), special_ids=[])) is None


def test_a_model_shares_what_does_the_same(smollm2: TextProcessor, sentencepiece: TextProcessor) -> None:
    assert smollm2.sharing(sentencepiece) is smollm2
    again = TextProcessor(byte_level("closed"), smollm2.chat_template)
    shared = again.sharing(TextProcessor(byte_level(""), None))
    assert shared.chat_template is again.chat_template
    assert not shared.tokenizer.shares_with(again.tokenizer)
    assert shared.encode("b") == [1, 1]
