"""Structured outputs: what an answer has to look like, and which tokens it may go on with.

A `GrammarSpec` says what is wanted. `engine.grammar.compiler` makes of it, for one model's vocabulary, something that
deals out matchers; each choice has a matcher of its own, which follows the choice's tokens and tells the sampler which
may come next. All that the rest of the engine knows of a grammar is `GrammarMatcher`.
"""

from engine.grammar.matcher import GrammarFailed, GrammarMatcher
from engine.grammar.spec import GrammarKind, GrammarRefused, GrammarSpec

__all__ = ["GrammarFailed", "GrammarKind", "GrammarMatcher", "GrammarRefused", "GrammarSpec"]
