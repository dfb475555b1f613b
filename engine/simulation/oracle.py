"""The expected answer of a request: computed from the fake model, without the engine."""

from engine.request import FinishReason, TokenLogprob
from engine.simulation.driver import Transcript
from engine.simulation.fake_executor import prefix_digest, prefix_logprob, prefix_root
from engine.simulation.traffic import EOS_TOKEN, VOCAB_SIZE, Arrival


def transcript_alone(arrival: Arrival, window_tokens: int) -> Transcript:
    """The complete answer without its usage. Implements the API's rules of ending independently of the engine."""
    params = arrival.params
    digest = prefix_root(arrival.tenant.encode(), arrival.adapter)
    prompt_logprobs: list[TokenLogprob | None] = []
    for position, token in enumerate(arrival.tokens):
        prompt_logprobs.append(prefix_logprob(token, digest) if position else None)
        digest = prefix_digest(digest, token)
    alone = Transcript(finish_reason=FinishReason.LENGTH)
    if params.prompt_logprobs is not None:
        alone.prompt_logprobs = tuple(prompt_logprobs)
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else (EOS_TOKEN,))}
    for drawn in range(min(params.max_tokens or 0, window_tokens - len(arrival.tokens))):
        token = prefix_digest(digest, arrival.seed) % VOCAB_SIZE
        if token in ends and drawn >= params.min_tokens:
            alone.finish_reason, alone.stop_token = FinishReason.STOP, token
            break
        alone.token_ids.append(token)
        if params.logprobs is not None:
            alone.logprobs.append(prefix_logprob(token, digest))
        digest = prefix_digest(digest, token)
    return alone


def check_transcript(arrival: Arrival, given: Transcript, window_tokens: int) -> None:
    """A completed request has exactly its expected answer; an aborted or failed one has a prefix of it."""
    name, alone = arrival.id, transcript_alone(arrival, window_tokens)
    assert given.token_ids == alone.token_ids[: len(given.token_ids)], f"{name} was given other tokens than alone"
    assert given.logprobs == alone.logprobs[: len(given.logprobs)], f"{name} was given other log-probabilities"
    assert given.prompt_logprobs in ((), alone.prompt_logprobs), f"{name}: prompt log-probabilities differ"
    if given.usage is None:
        return  # aborted
    assert given.usage.prompt_tokens == len(arrival.tokens)
    assert given.usage.completion_tokens == len(given.token_ids) + (given.stop_token is not None)
    assert given.usage.cached_tokens < len(arrival.tokens)
    assert given.usage.accepted_draft_tokens <= min(given.usage.draft_tokens, given.usage.completion_tokens)
    if given.finish_reason is FinishReason.ERROR:
        assert given.error, f"{name} failed without saying why"
        return
    assert given.finish_reason == alone.finish_reason, f"{name} ended for another reason"
    assert given.stop_token == alone.stop_token, f"{name} ended with another token"
    assert len(given.token_ids) == len(alone.token_ids), f"{name} was given fewer tokens than alone"
    assert len(given.logprobs) == len(alone.logprobs), f"{name} was given fewer log-probabilities"
    assert given.prompt_logprobs == alone.prompt_logprobs, f"{name} was not given its prompt's log-probabilities"
