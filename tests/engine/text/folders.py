"""Tokenizer folders as transformers writes them, small enough to make in a test."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from tests.engine.text.corpus import CORPUS
from tests.engine.text.sentencepiece_vocabulary import sentencepiece_metadata

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}"
    "[INST] {{ message.content }} [/INST]{% else %} {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
SPECIAL = ("<|bos|>", "<|im_start|>", "<|im_end|>")


def byte_level_backend() -> Tokenizer:
    """Llama-3-like: byte-level, BOS by post-processor, `<think>` an added token that is not special."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=500,
            show_progress=False,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    backend.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", 0)]
    )
    return backend


def byte_level_folder(folder: Path, **settings: Any) -> PreTrainedTokenizerFast:
    names = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "chat_template": CHATML}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_backend(), **{**names, **settings})
    tokenizer.save_pretrained(folder)
    return tokenizer


def llama2_folder(folder: Path) -> LlamaTokenizer:
    metadata = sentencepiece_metadata(add_space_prefix=True)
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    scores = dict(zip(tokens, metadata["tokenizer.ggml.scores"], strict=True))
    others = [token for token, kind in zip(tokens, types, strict=True) if kind != 1]
    tokenizer = LlamaTokenizer(
        vocab=vocabulary, merges=generate_merges(vocabulary, scores, skip_tokens=others), chat_template=LLAMA2
    )
    tokenizer.save_pretrained(folder)
    return tokenizer
