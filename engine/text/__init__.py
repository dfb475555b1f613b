"""Text and token ids: tokenizers, chat templates, incremental detokenising with stop strings.

One `TextProcessor` for each served model; `engine.checkpoints.text` makes it from a checkpoint.
"""

from engine.text.chat_template import ChatTemplate, ChatTemplateError
from engine.text.detokenizer import Detokenizer
from engine.text.least_tokens import TooManyTokens
from engine.text.processor import TextProcessor
from engine.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "ChatTemplateError", "Detokenizer", "TextProcessor", "Tokenizer", "TooManyTokens"]
