"""Features of a question, computed in microseconds without a model.

Numeric features have names (`NUMBERS`) and an order; fitted weights are stored by name. Word features are the distinct
lower-case words of the text. Every number counts as the word `#`, and each sign is a word of its own.
"""

import re
from math import log1p

from gateway.routing.question import Question

READ_CHARS = 2000
"""Characters read of a text. Of a longer one the first and the last half of this are read, so the cost is bounded."""

NUMBERS = (
    *("chars", "words", "lines", "word_length", "long_words", "capitals"),
    *("figures", "figures_share", "longest_figure", "maths", "code", "quotes", "questions", "negated"),
    *("choices", "choice_chars", "numeric_choices", "stem_chars"),
    *("asks_text", "asks_reason", "asks_short", "asks_format"),
    *("turns", "system_chars", "tools", "schema", "length_asked", "length_open"),
)

Reading = tuple[tuple[float, ...], frozenset[str]]
"""Values of `NUMBERS` in their order, each scaled to the order of 1, and the set of words."""

_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")
_ASCII_WORD = re.compile(r"[a-z]+|[0-9]+|[^a-z0-9\s]")
"""The same for lower-case ASCII, at half the cost."""
_ASCII_CAPITAL = re.compile(r"[A-Z]")
_CAPITAL = re.compile(r"[A-Z]")
_CHOICE = re.compile(r"\n\(?[A-Ea-e1-5][.)] ")
_SUM = re.compile(r"\d ?[-+*/x] ?\d")
_MATHS_SIGNS = frozenset("=^√∑∫≤≥×÷\\$")
_CODE_MARKS = ("```", "def ", "return ", "();", "{\n", ";\n", "=>", "</", "SELECT ", "#include", "import ")
_NEGATED = frozenset({"not", "except", "incorrect", "false", "least", "never", "without", "cannot"})
_TEXT = frozenset(
    {"write", "essay", "story", "poem", "letter", "article", "draft", "compose", "rewrite", "summarize", "summarise"}
    | {"translate", "explain", "describe", "discuss", "outline", "plan", "design"}
)
_REASON = frozenset(
    {"why", "how", "prove", "derive", "compute", "calculate", "solve", "compare", "evaluate", "analyze", "analyse"}
    | {"determine", "if", "suppose", "assume", "total", "each", "many", "much", "remaining", "altogether", "step"}
)
_SHORT = frozenset({"only", "one", "word", "yes", "no", "single", "just", "briefly", "short", "answer"})
_FORMAT = frozenset({"json", "yaml", "xml", "csv", "table", "list", "bullet", "markdown", "format", "sorted", "order"})


def read(question: Question) -> Reading:
    """Compute the features of a question."""
    text = question.text
    if len(text) > READ_CHARS:
        text = f"{text[: READ_CHARS // 2]}\n{text[-READ_CHARS // 2 :]}"
    tokens, capitals = _tokens(text)
    figures, spelt = [], []
    for token in tokens:
        if token.isdigit():
            figures.append(token)
        elif token.isalpha():
            spelt.append(token)
    words = frozenset((*set(tokens).difference(figures), *(("#",) if figures else ())))
    stem, *choices = _CHOICE.split(text)
    if len(choices) < 2:
        stem, choices = text, []
    numbers = (
        log1p(len(question.text)),
        log1p(len(spelt)),
        log1p(text.count("\n")),
        sum(map(len, spelt)) / (len(spelt) or 1),
        sum(len(word) > 9 for word in spelt) / (len(spelt) or 1),
        capitals / (len(text) or 1),
        log1p(len(figures)),
        len(figures) / (len(tokens) or 1),
        log1p(max(map(len, figures), default=0)),
        float(not words.isdisjoint(_MATHS_SIGNS) or _SUM.search(text) is not None),
        float(any(mark in text for mark in _CODE_MARKS)),
        log1p(text.count('"')),
        log1p(text.count("?")),
        float(not words.isdisjoint(_NEGATED)),
        log1p(len(choices)),
        log1p(sum(map(len, choices)) / (len(choices) or 1)),
        float(bool(choices) and all(any(map(str.isdigit, choice)) for choice in choices)),
        log1p(len(stem)),
        float(len(words & _TEXT)),
        float(len(words & _REASON)),
        float(len(words & _SHORT)),
        float(len(words & _FORMAT)),
        log1p(question.turns),
        log1p(question.system_chars),
        float(question.has_tools),
        float(question.has_schema),
        log1p(question.max_tokens or 0),
        float(question.max_tokens is None),
    )
    return numbers, words


def _tokens(text: str) -> tuple[list[str], int]:
    """Words, numbers and signs in lower case, and the number of capitals in the text."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower()), len(_ASCII_CAPITAL.findall(text))
    return _WORD.findall(text.lower()), sum(map(str.isupper, text))
