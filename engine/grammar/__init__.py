"""Structured output: constrained decoding of an answer to a JSON schema, regular expression, choice or context-free
grammar.

A `GrammarSpec` is the constraint as the client states it. `engine.grammar.compiler` compiles it for one model's
vocabulary with llguidance. Each choice of a request gets a `GrammarMatcher` of its own, which follows the tokens of the
choice and gives the sampler a bitmask of the tokens that may come next. The rest of the engine sees `GrammarMatcher`
only.
"""

from engine.grammar.matcher import GrammarFailed, GrammarMatcher
from engine.grammar.spec import GrammarKind, GrammarRefused, GrammarSpec

__all__ = ["GrammarFailed", "GrammarKind", "GrammarMatcher", "GrammarRefused", "GrammarSpec"]
