"""Checks the words of docs, docstrings, comments, help and assertions: `python -m tests.words`, part of `make check`.

The project writes in the terms of its field (`docs/glossary.md`). `DIALECT` lists words that a reader has to decode,
each with its remedy. Paths that the docs name must exist, too.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
DOCS = (
    "*.md",
    "docs/*.md",
    "benchmarks/*.md",
    "deploy/kubernetes/*.md",
    "models/*.md",
    "examples/*/*.md",
    "tests/whole/*.md",
)
FOLDERS = ("engine", "gateway", "kernels", "migrations", "tests", "benchmarks", "deploy", "models", "examples")
DIALECT = {
    r"(some|no|every)body": "name the actor, or use the passive voice",
    r"whoever": "name the actor",
    r"so (many|much)": "name the number: `depth`, the maximum, 8 bits",
    r"(is|are|was|were) about(?! to\b)": "is active, concerns, is approximately",
    r"of late": "recent, recently",
    r"anew": "again, from zero",
    r"beside": "next to, with, in addition to, compared with",
    r"meanwhile": "during the outage, in that time",
    r"(go|goes|went|going) on": "continue, resume, keep",
    r"(come|comes|came) to nothing": "name the result",
    r"(let|lets|letting) go of": "release",
    r"(is|are|was|were) told": "receives, is notified",
}
"""Expressions for whole words, in any case, and the remedy."""

_DIALECT = {re.compile(rf"\b{words}\b", re.IGNORECASE): remedy for words, remedy in DIALECT.items()}
_OPENING = re.compile(r"(What|Whose|Whatever|Whichever)\b(?!.*\?$)")
_CODE_SPAN = re.compile(r"`[^`\n]*`")
_PATH = re.compile(rf"`((?:{'|'.join((*FOLDERS, 'deploy', 'docs'))})/[\w./-]*)`")


class Text(NamedTuple):
    """Prose in a file, from a line on (1 for the first). `is_docstring`: it is a whole docstring or help text."""

    line: int
    text: str
    is_docstring: bool = False


class Finding(NamedTuple):
    """A dialect word or a missing path in a line of a file, with the remedy."""

    line: int
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.line}: {self.found!r}: {self.remedy}"


def findings_in(texts: Iterator[Text]) -> Iterator[Finding]:
    """The dialect words in these texts."""
    for first_line, text, is_docstring in texts:
        prose = _CODE_SPAN.sub(lambda span: " " * len(span[0]), text)
        for pattern, remedy in _DIALECT.items():
            for match in pattern.finditer(prose):
                yield Finding(first_line + prose.count("\n", 0, match.start()), match[0], remedy)
        if is_docstring and (opening := _OPENING.match(text.partition("\n")[0])):
            yield Finding(first_line, opening[0], "open a docstring with a noun or a verb")


def markdown_prose(text: str) -> Iterator[Text]:
    """The lines of a Markdown file outside code blocks."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield Text(number, line)


def python_prose(text: str) -> Iterator[Text]:
    """The docstrings, attribute docstrings, comments, `help` texts and assertion messages of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Text(node.lineno, node.value.value, is_docstring=True)
        elif isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
            yield Text(node.value.lineno, str(node.value.value), is_docstring=True)
        elif isinstance(node, ast.Assert) and node.msg is not None:
            yield from _constant_parts(node.msg)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string)


def _constant_parts(message: ast.expr) -> Iterator[Text]:
    """The text of an assertion message: a constant, or the constant parts of an f-string."""
    for part in message.values if isinstance(message, ast.JoinedStr) else [message]:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield Text(part.lineno, part.value)


def missing_paths(text: str) -> Iterator[Finding]:
    """Paths of this repository that a Markdown file names and that do not exist."""
    for number, line in enumerate(text.splitlines(), 1):
        for path in _PATH.findall(line):
            if not (ROOT / path).exists():
                yield Finding(number, path, "does not exist")


def main() -> int:
    """Print the findings. Returns the exit code."""
    found: dict[str, list[Finding]] = {}
    for path in sorted(path for pattern in DOCS for path in ROOT.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        found[path.relative_to(ROOT).as_posix()] = [*findings_in(markdown_prose(text)), *missing_paths(text)]
    for path in sorted(path for package in FOLDERS for path in (ROOT / package).rglob("*.py")):
        prose = python_prose(path.read_text(encoding="utf-8"))
        found[path.relative_to(ROOT).as_posix()] = list(findings_in(prose))
    for name, findings in found.items():
        for finding in sorted(findings):
            print(f"{name}:{finding}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
