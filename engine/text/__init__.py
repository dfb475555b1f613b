"""Text and token ids: tokenizers, chat templates, incremental detokenisation with stop strings.

Each served model has one `TextProcessor`, made from its checkpoint by `engine.checkpoints.text`.
"""

from engine.text.chat_template import ChatTemplate, ChatTemplateError
from engine.text.detokenizer import Detokenizer
from engine.text.least_tokens import TooManyTokens
from engine.text.processor import TextProcessor
from engine.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "ChatTemplateError", "Detokenizer", "TextProcessor", "Tokenizer", "TooManyTokens"]
