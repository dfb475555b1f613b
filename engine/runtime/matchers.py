"""The matchers of a request's choices, from its grammar."""

from collections.abc import Sequence

from engine.errors import EngineError, InvalidParameter, TooManyGrammars
from engine.grammar.after_reasoning import AfterReasoning
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.matcher import GrammarMatcher
from engine.grammar.sandbox import SandboxFailed
from engine.grammar.spec import GrammarRefused, GrammarSpec
from engine.grammar.tenant_queues import QueueFull
from engine.request import Request
from engine.runtime.futures import outcome_of
from engine.runtime.model_loading import ServedModel


async def assign_matchers(served: ServedModel, grammar: GrammarSpec, requests: Sequence[Request]) -> None:
    """Each choice gets a matcher of its own.

    Raises:
        InvalidParameter: the grammar cannot be enforced.
        EngineError: no grammar can be compiled at the moment.
        TooManyGrammars: too many of the tenant's wait to be compiled.
    """
    assert served.grammars is not None
    try:
        # Shielded: others may wait for the same.
        compiled = await outcome_of(served.grammars.compile(grammar, requests[0].tenant))
    except GrammarRefused as error:
        raise await _refusal(served.grammars, grammar, requests[0].tenant, error) from None
    except QueueFull as error:
        raise TooManyGrammars(f"{grammar.param}: {error}. Retry in a few seconds.") from None
    except SandboxFailed as error:
        raise EngineError(f"no grammar can be compiled: {error}") from error
    for request in requests:
        request.matcher = _after_reasoning(served, request, compiled.matcher(), grammar)


def _after_reasoning(
    served: ServedModel, request: Request, matcher: GrammarMatcher, grammar: GrammarSpec
) -> GrammarMatcher:
    """A model that reasons may do so first: a grammar would have it answer in the middle of its thoughts.

    Raises:
        InvalidParameter: it is in the middle of them, and has no token that ends them.
    """
    dialect = served.text.dialect
    if not request.params.conversational or dialect.reasoning is None:
        return matcher
    begun = dialect.reasons_already(served.text.tokenizer, request.tokens)
    if dialect.reasoning_ids is None:
        if begun:
            raise InvalidParameter(
                grammar.param, f"{grammar.param} is not supported by {served.name} when it reasons first"
            )
        return matcher
    begin_id, end_id = dialect.reasoning_ids
    return AfterReasoning(matcher, begin_id=begin_id, end_id=end_id, begun=begun, eos_token_ids=request.eos_token_ids)


async def _refusal(
    grammars: GrammarCompiler, grammar: GrammarSpec, tenant: str, error: GrammarRefused
) -> InvalidParameter:
    """What to say of a grammar that cannot be enforced: by the first of its parts that cannot, if there is one."""
    for part in grammar.parts:
        try:
            await outcome_of(grammars.compile(part, tenant))
        except GrammarRefused as refused:
            return InvalidParameter(part.param, f"{part.param} cannot be enforced: {refused}")
    return InvalidParameter(grammar.param, f"{grammar.param} cannot be enforced: {error}")
