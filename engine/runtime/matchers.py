"""Compiles the grammar of a request and assigns a matcher to each of its choices."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import EngineError, InvalidParameter, TooManyGrammars
from engine.grammar.after_reasoning import AfterReasoning
from engine.grammar.matcher import GrammarMatcher
from engine.grammar.spec import GrammarRefused, GrammarSpec, SandboxFailed
from engine.grammar.tenant_queues import QueueFull
from engine.request import Request
from engine.runtime.futures import outcome_of
from engine.runtime.loaded_model import ServedModel

if TYPE_CHECKING:
    from engine.grammar.compiler import GrammarCompiler


async def assign_matchers(served: ServedModel, grammar: GrammarSpec, requests: Sequence[Request]) -> None:
    """Compile `grammar` and give each request a matcher of its own.

    Raises:
        InvalidParameter: the grammar cannot be enforced.
        EngineError: no grammar can be compiled at the moment.
        TooManyGrammars: too many grammars of the tenant are queued.
    """
    assert served.grammars is not None
    try:
        # Shielded: other requests may share the future.
        compiled = await outcome_of(served.grammars.compile(grammar, requests[0].tenant))
    except GrammarRefused as error:
        raise await _refusal(served.grammars, grammar, requests[0].tenant, error) from None
    except QueueFull as error:
        raise TooManyGrammars(f"{grammar.param}: {error}. Please try again in a few seconds.") from None
    except SandboxFailed as error:
        raise EngineError(f"grammars cannot be compiled: {error}") from error
    for request in requests:
        request.matcher = _after_reasoning(served, request, compiled.matcher(), grammar)


def _after_reasoning(
    served: ServedModel, request: Request, matcher: GrammarMatcher, grammar: GrammarSpec
) -> GrammarMatcher:
    """The matcher, delayed until after the reasoning for a model that reasons: applied from the first token, it would
    cut the reasoning off.

    Raises:
        InvalidParameter: the prompt ends inside the reasoning, and no single token ends it.
    """
    dialect = served.text.dialect
    if not request.params.conversational or dialect.reasoning is None:
        return matcher
    begun = dialect.reasons_already(served.text.tokenizer, request.tokens[: request.prompt_tokens])
    if dialect.reasoning_ids is None:
        if begun:
            raise InvalidParameter(
                grammar.param, f"{grammar.param} is not supported with {served.name} while it is reasoning"
            )
        return matcher
    begin_id, end_id = dialect.reasoning_ids
    return AfterReasoning(matcher, begin_id=begin_id, end_id=end_id, begun=begun, eos_token_ids=request.eos_token_ids)


async def _refusal(
    grammars: "GrammarCompiler", grammar: GrammarSpec, tenant: str, error: GrammarRefused
) -> InvalidParameter:
    """The error of a grammar that cannot be enforced; names the first part that fails on its own, if any."""
    for part in grammar.parts:
        try:
            await outcome_of(grammars.compile(part, tenant))
        except GrammarRefused as refused:
            return InvalidParameter(part.param, f"Invalid {part.param}: {refused}")
    return InvalidParameter(grammar.param, f"Invalid {grammar.param}: {error}")
