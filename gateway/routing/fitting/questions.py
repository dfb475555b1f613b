"""Questions with a gradable answer, as a file of JSON lines.

A line is {"prompt": text} or {"messages": [...]}, with "check" (`graders.py`) and, optionally, "max_tokens", "family"
(kind of task) and "grade" (intended difficulty).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.errors import OperatorError
from gateway.routing.fitting.graders import Check
from gateway.routing.question import Question

_ROLES = {"system", "user", "assistant"}


class UnusableQuestions(OperatorError):
    """A file of questions cannot be read. The message names the line."""


@dataclass(frozen=True, slots=True)
class CheckedQuestion:
    """A question and the check of its answer."""

    messages: tuple[Mapping[str, str], ...]
    check: Check
    max_tokens: int | None = None
    family: str = ""
    grade: int = 0

    @property
    def key(self) -> str:
        """Hash of everything that the model is given: the same question in another file has the same key."""
        asked = json.dumps([self.messages, self.max_tokens], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()[:24]

    @property
    def question(self) -> Question:
        """The gateway's reading of the same request."""
        said = [message["content"] for message in self.messages if message["role"] == "user"]
        system = [message["content"] for message in self.messages if message["role"] == "system"]
        return Question(
            text="\n".join(said),
            turns=len(self.messages) - len(system),
            system_chars=sum(map(len, system)),
            max_tokens=self.max_tokens,
        )


def read_questions(path: Path) -> tuple[CheckedQuestion, ...]:
    """The distinct questions of a file, in its order.

    Raises:
        UnusableQuestions: there is no such file, a line is not a question, or there are no questions.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableQuestions(f"{path}: cannot be read ({type(error).__name__})") from None
    questions: dict[str, CheckedQuestion] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            question = _question(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnusableQuestions(f"{path}: line {number} is not a question with a check: {error!r}") from None
        questions.setdefault(question.key, question)
    if not questions:
        raise UnusableQuestions(f"{path}: has no questions")
    return tuple(questions.values())


def _question(line: Mapping[str, Any]) -> CheckedQuestion:
    messages = line["messages"] if "messages" in line else [{"role": "user", "content": line["prompt"]}]
    max_tokens = line.get("max_tokens")
    if max_tokens is not None and not (isinstance(max_tokens, int) and max_tokens > 0):
        raise ValueError("max_tokens must be a positive integer")
    check = line["check"]
    return CheckedQuestion(
        tuple(_message(message) for message in messages),
        Check(check["rule"], str(check["answer"]), tuple(map(str, check.get("among", ())))),
        max_tokens,
        str(line.get("family", "")),
        int(line.get("grade", 0)),
    )


def _message(message: Mapping[str, Any]) -> Mapping[str, str]:
    role, content = message["role"], message["content"]
    if role not in _ROLES or not isinstance(content, str):
        raise ValueError("a message has a role (system, user, assistant) and a text as content")
    return {"role": role, "content": content}
