"""Word splitting of byte-level BPE by the pre-tokenizer names of llama.cpp (`tokenizer.ggml.pre` in GGUF).

The expressions are those of llama.cpp's `llm_tokenizer_bpe` (src/llama-vocab.cpp), applied in sequence: each splits
every piece that the one before left, and the text between two matches is a piece as well. Names for which llama.cpp has
hand-written splitters, or expressions that its engine reads differently from a Unicode one, are unsupported rather than
approximated. Ids may differ for characters whose class differs between the two libraries' Unicode tables (newly
assigned ones).
"""

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_NOT_LOWER, _NOT_UPPER = r"((?=[\p{L}])([^a-z]))", r"((?=[\p{L}])([^A-Z]))"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}*{_NOT_UPPER}+"
_CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}+{_NOT_UPPER}*"

_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_DIGITS_THEN_GPT2 = (r"\p{N}", _GPT2)
_LLAMA3 = (rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}",)
_QWEN2 = (rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_TAIL}",)
_TEKKEN = (rf"{_CASED}|{_CAPITALS}|\p{{N}}|{_SLASH_TAIL}",)
_GPT4O = (rf"{_CASED}{_CONTRACTION}?|{_CAPITALS}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SLASH_TAIL}",)
_MARKED_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_QWEN35 = (rf"{_CONTRACTION}|{_MARKED_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",)
_UFAKZEKA = (rf"{_WORD}|\p{{N}}|{_TAIL}",)
_MINICPM5 = (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_TAIL}")
_JAIS2 = (
    rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)"
    r"|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
)
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
)
_BAILINGMOE = (
    rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-\x{d7ff}]+", r"\p{N}")
_LETTERS_WITH_CASE = (
    r"A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}"
    r"\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}"
    r"\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}"
    r"\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}"
    r"\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}"
    r"\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}"
    r"\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}"
    r"\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}"
    r"\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}"
    r"\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}"
    r"\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}"
    r"\x{118a0}-\x{118df}\x{1e900}-\x{1e943}"
)
"""Of a class: the letters that have another case, as DeepSeek's tokenizer lists them."""
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_LETTERS_WITH_CASE}]+",
    r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-\x{d7ff}]+",
    r"\p{N}+",
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥\x{3040}-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"""|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_BLOOM = (r" ?[^(\s|.,!?…。，、।۔،)]+",)
_SEED_CODER = (rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",)


@dataclass(frozen=True, slots=True)
class PreTokenizerRule:
    """`ignores_merges`: a word that is a token is not merged. `adds_bos`: default where the file does not say."""

    expressions: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False


_RULES: dict[PreTokenizerRule, tuple[str, ...]] = {
    PreTokenizerRule(_DEFAULT): ("default",),
    PreTokenizerRule((_GPT2,)): (
        *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat"),
        *("a.x-4.0", "mellum", "exaone4"),
    ),
    PreTokenizerRule(_DIGITS_THEN_GPT2): (
        *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    PreTokenizerRule(_LLAMA3, ignores_merges=True, adds_bos=True): (
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    ),
    PreTokenizerRule(_LLAMA3): ("dbrx", "smaug-bpe", "chatglm-bpe"),
    PreTokenizerRule(_LLAMA3, ignores_merges=True): ("glm4", "glm5"),
    PreTokenizerRule(_QWEN2): (
        *("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open"),
        "grok-2",
    ),
    PreTokenizerRule(_TEKKEN, ignores_merges=True, adds_bos=True): ("tekken",),
    PreTokenizerRule(_GPT4O): ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    PreTokenizerRule(_SEED_CODER): ("seed-coder",),
    PreTokenizerRule(_QWEN35): ("qwen35",),
    PreTokenizerRule(_UFAKZEKA): ("ufakzeka",),
    PreTokenizerRule(_MINICPM5, ignores_merges=True): ("minicpm5",),
    PreTokenizerRule(_JAIS2): ("jais-2",),
    PreTokenizerRule(_EXAONE_MOE): ("exaone-moe",),
    PreTokenizerRule(_BAILINGMOE): ("bailingmoe", "bailingmoe2", "llada-moe"),
    PreTokenizerRule(_DEEPSEEK_LLM): ("deepseek-llm",),
    PreTokenizerRule(_DEEPSEEK_CODER): ("deepseek-coder",),
    PreTokenizerRule(_DEEPSEEK3): ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
    PreTokenizerRule(_FALCON): ("falcon",),
    PreTokenizerRule(_BLOOM): ("bloom", "gpt3-finnish", "poro-chat"),
    PreTokenizerRule((*_BLOOM, r"\p{N}")): ("viking",),
}

RULES = {name: rule for rule, names in _RULES.items() for name in names}


def splitter(rule: PreTokenizerRule) -> PreTokenizer:
    """The pre-tokenizer of a rule: splits by the expressions, then maps bytes to GPT-2's alphabet."""
    cuts = [Split(Regex(expression), "isolated") for expression in rule.expressions]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])
