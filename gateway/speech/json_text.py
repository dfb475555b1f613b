"""Validates JSON character by character."""

import re
from enum import Enum, auto

_WORD = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_IN_WORDS = frozenset("abcdefghijklmnopqrstuvwxyzE0123456789+-.")
_SPACES = frozenset(" \t\n\r")
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPED = frozenset('"\\/bfnrt')
_CLOSES = {"{": "}", "[": "]"}


class NotJson(ValueError):
    """The character does not continue valid JSON."""


class _Expects(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    IN_STRING = auto()
    IN_ESCAPE = auto()
    IN_HEX = auto()
    IN_WORD = auto()


class JsonText:
    """Validates one value of any depth: an object, an array or a string. `ended`: the value is complete.

    Invariant: the characters taken are a prefix of a valid JSON text (RFC 8259), except that a number or a literal is
    only validated at its end.
    """

    __slots__ = ("_after_string", "_expects", "_hex_left", "_open", "_word", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._open: list[str] = []
        self._expects = _Expects.VALUE
        self._after_string = _Expects.COMMA_OR_END
        self._hex_left = 0
        self._word = ""

    def take(self, char: str) -> None:
        """Take the next character. Requires: not `ended`. Raises: NotJson, after which the object is unusable."""
        match self._expects:
            case _Expects.IN_STRING:
                self._in_string(char)
            case _Expects.IN_ESCAPE:
                self._in_escape(char)
            case _Expects.IN_HEX:
                self._in_hex(char)
            case _Expects.IN_WORD if char in _IN_WORDS:
                self._word += char
            case _Expects.IN_WORD:
                self._end_word()
                self._between(char)
            case _:
                self._between(char)

    def _in_string(self, char: str) -> None:
        if char == '"':
            self._expects = self._after_string
            self.ended = not self._open
        elif char == "\\":
            self._expects = _Expects.IN_ESCAPE
        elif char < " ":
            raise NotJson

    def _in_escape(self, char: str) -> None:
        if char == "u":
            self._expects, self._hex_left = _Expects.IN_HEX, 4
        elif char in _ESCAPED:
            self._expects = _Expects.IN_STRING
        else:
            raise NotJson

    def _in_hex(self, char: str) -> None:
        if char not in _HEX:
            raise NotJson
        self._hex_left -= 1
        if not self._hex_left:
            self._expects = _Expects.IN_STRING

    def _end_word(self) -> None:
        if _WORD.fullmatch(self._word) is None:
            raise NotJson
        self._expects = _Expects.COMMA_OR_END

    def _between(self, char: str) -> None:
        """Take a character outside strings, numbers and literals."""
        if char in _SPACES:
            return
        match self._expects:
            case _Expects.COLON if char == ":":
                self._expects = _Expects.VALUE
            case _Expects.KEY | _Expects.KEY_OR_END if char == '"':
                self._expects, self._after_string = _Expects.IN_STRING, _Expects.COLON
            case _Expects.KEY_OR_END | _Expects.VALUE_OR_END | _Expects.COMMA_OR_END if char == self._closing:
                self._open.pop()
                self._expects = _Expects.COMMA_OR_END
                self.ended = not self._open
            case _Expects.COMMA_OR_END if char == ",":
                self._expects = _Expects.KEY if self._open[-1] == "{" else _Expects.VALUE
            case _Expects.VALUE | _Expects.VALUE_OR_END:
                self._begin(char)
            case _:
                raise NotJson

    @property
    def _closing(self) -> str:
        return _CLOSES[self._open[-1]]

    def _begin(self, char: str) -> None:
        """Take the first character of a value."""
        if char in _CLOSES:
            self._open.append(char)
            self._expects = _Expects.KEY_OR_END if char == "{" else _Expects.VALUE_OR_END
        elif char == '"':
            self._expects, self._after_string = _Expects.IN_STRING, _Expects.COMMA_OR_END
        elif char in _IN_WORDS and self._open:
            self._expects, self._word = _Expects.IN_WORD, char
        else:
            raise NotJson
