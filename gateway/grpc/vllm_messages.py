"""Deltas of an answer as messages of vLLM's engine protocol."""

from collections.abc import Sequence
from itertools import chain

from engine.request import FinishReason, TextDelta, TokenLogprob
from gateway.grpc.protos import vllm_engine_pb2 as pb


class ChoiceMessages:
    """Messages of one choice. `prompt`: its token ids. `is_stream`: each delta is a chunk; else there is one message,
    at the end."""

    def __init__(self, index: int, prompt: Sequence[int], *, is_stream: bool) -> None:
        self._index = index
        self._prompt = prompt
        self._is_stream = is_stream
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: Sequence[TokenLogprob | None] = ()
        self._cached_tokens = 0
        self.ended = False

    def messages(self, delta: TextDelta) -> list[pb.GenerateResponse]:
        """Those of the next delta."""
        self._cached_tokens = delta.cached_tokens
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs
        self._prompt_logprobs = delta.prompt_logprobs or self._prompt_logprobs
        made = []
        if self._is_stream and (delta.token_ids or delta.prompt_logprobs):
            made.append(pb.GenerateResponse(chunk=self._chunk(delta)))
        if delta.finish_reason is not None:
            made.append(self._complete(delta.finish_reason, delta))
        return made

    def aborted(self) -> pb.GenerateResponse:
        """The last message of a choice that was aborted."""
        return self._complete(FinishReason.ABORT, None)

    def _chunk(self, delta: TextDelta) -> pb.GenerateStreamChunk:
        return pb.GenerateStreamChunk(
            token_ids=delta.token_ids,
            prompt_tokens=len(self._prompt),
            completion_tokens=len(delta.token_ids),
            cached_tokens=delta.cached_tokens,
            output_logprobs=_output_logprobs(delta.logprobs),
            input_logprobs=_input_logprobs(self._prompt, delta.prompt_logprobs),
            index=self._index,
        )

    def _complete(self, reason: FinishReason, delta: TextDelta | None) -> pb.GenerateResponse:
        self.ended = True
        usage = None if delta is None else delta.usage
        complete = pb.GenerateComplete(
            output_ids=self._token_ids,
            finish_reason=reason.value,
            prompt_tokens=len(self._prompt),
            completion_tokens=len(self._token_ids) if usage is None else usage.completion_tokens,
            cached_tokens=self._cached_tokens,
            output_logprobs=_output_logprobs(self._logprobs),
            input_logprobs=_input_logprobs(self._prompt, self._prompt_logprobs),
            index=self._index,
        )
        if delta is not None and isinstance(delta.stop, int):
            complete.matched_token_id = delta.stop
        elif delta is not None and isinstance(delta.stop, str):
            complete.matched_stop_str = delta.stop
        return pb.GenerateResponse(complete=complete)


def _output_logprobs(entries: Sequence[TokenLogprob]) -> pb.OutputLogProbs | None:
    if not entries:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[entry.logprob for entry in entries],
        token_ids=[entry.token_id for entry in entries],
        top_logprobs=_top(entries),
    )


def _input_logprobs(prompt: Sequence[int], entries: Sequence[TokenLogprob | None]) -> pb.InputLogProbs | None:
    if not entries:
        return None
    return pb.InputLogProbs(
        token_logprobs=[pb.InputTokenLogProb(value=None if entry is None else entry.logprob) for entry in entries],
        token_ids=prompt,
        top_logprobs=_top(entries),
    )


def _top(entries: Sequence[TokenLogprob | None]) -> list[pb.TopLogProbs]:
    """The alternatives by position; none where none were asked for."""
    tops = [() if entry is None else entry.top for entry in entries]
    if not any(chain(tops)):
        return []
    return [
        pb.TopLogProbs(values=[each.logprob for each in top], token_ids=[each.token_id for each in top]) for top in tops
    ]
