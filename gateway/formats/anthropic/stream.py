"""Anthropic's named server-sent events, and the content blocks in them."""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.speech.pieces import CallArguments, CallBegun, Piece, Reasoning, Text

PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def event(name: str, members: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps({"type": name, **members}))


class BlockStream:
    """Formats pieces as content blocks. Each block is opened, filled and closed before the next one is opened.

    Invariant: a call's arguments arrive before any other piece that follows the call. Hidden reasoning is replaced by
    pings, which keep the connection active.
    """

    def __init__(self, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: str | None = None

    def events(self, piece: Piece) -> bytes:
        match piece:
            case Text(text):
                begun = b"" if self._open == "text" else self._begin({"type": "text", "text": ""})
                return begun + self._delta(b"text_delta", b"text", text)
            case Reasoning(text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                begun = b"" if self._open == "thinking" else self._begin(block)
                return begun + (self._delta(b"thinking_delta", b"thinking", text) if self._shows_thinking else PING)
            case CallBegun(_, id, name):
                return self._begin({"type": "tool_use", "id": id, "name": name, "input": {}})
            case CallArguments(_, text):
                assert self._open == "tool_use", "arguments of a call whose block is closed"
                return self._delta(b"input_json_delta", b"partial_json", text)

    def close(self) -> bytes:
        """End the open block, if there is one."""
        if self._open is None:
            return b""
        self._open = None
        return event("content_block_stop", {"index": self._index})

    def _begin(self, block: Mapping[str, Any]) -> bytes:
        closed = self.close()
        self._index += 1
        self._open = block["type"]
        return closed + event("content_block_start", {"index": self._index, "content_block": block})

    def _delta(self, kind: bytes, member: bytes, text: str) -> bytes:
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":%b}}\n\n' % (self._index, kind, member, orjson.dumps(text))
        )
