"""A request that was admitted, on its way through the engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.request import PromptInput
from engine.runtime.engine_call import EngineCall
from engine.runtime.streams import AbortListener
from gateway.generation.admit import Admission
from gateway.generation.context import Candidate, RequestContext
from gateway.generation.engine_client import EngineClient, OutputStream
from gateway.generation.measurement import Measurement
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.usage import UsageTotal
from gateway.speech.output_parser import OutputParser, ParsedDelta


@dataclass(frozen=True, slots=True)
class Run:
    """An admitted candidate."""

    context: RequestContext
    candidate: Candidate
    admission: Admission
    measurement: Measurement

    @property
    def prompts(self) -> Sequence[PreparedPrompt]:
        """With answers as long as the hold allows."""
        return self.admission.prompts

    @property
    def usage(self) -> UsageTotal:
        return self.admission.usage

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.context.choices_each

    def submit(self, engine: EngineClient, prompts: Sequence[PreparedPrompt], first: int = 0) -> OutputStream:
        """The call of prompts number `first` on. Its choices are numbered from 0."""
        context, candidate = self.context, self.candidate
        call = EngineCall(
            [
                PromptInput(prompt.token_ids, prompt.params, f"{context.id}-{position}", prompt.continues_text)
                for position, prompt in enumerate(prompts, first)
            ],
            tenant=context.client.principal.tenant_id,
            service_class=context.client.serving.engine_class,
            on_abort=_listener(self.admission, first * context.choices_each),
            reservation=candidate.reservation,
            adapter=candidate.adapter,
        )
        stream = engine.submit(candidate.model.name, call)
        self.admission.on_submitted()
        return stream

    def record(self, outputs: Sequence[ParsedDelta]) -> None:
        """Count deltas on their way to the sink."""
        self.measurement.record_deltas(outputs)
        for output in outputs:
            self.usage.add(output.choice, output.delta, output.reasoning_tokens)
        self.usage.ttft_ms = self.measurement.ttft_ms

    def require_ended(self) -> None:
        """Raises RuntimeError where the engine's streams ended, and not all choices."""
        ended = len(self.usage.ended)
        if ended != self.choices:
            raise RuntimeError(f"the engine ended {ended} of {self.choices} choices")


class Sink(Protocol):
    """Receives the answer of one request."""

    def on_admitted(self, run: Run) -> OutputParser:
        """The model is selected, and nothing has been submitted to it. Returns the parser of its answer."""
        ...

    async def on_outputs(self, outputs: Sequence[ParsedDelta]) -> bool:
        """The next deltas, in order, already counted. Returns whether they were handed to the client's transport: then
        they are billed, whatever comes next. They are not if the client has gone, which raises `ClientGone`."""
        ...

    async def on_billed(self) -> None:
        """All choices have ended and the usage record is on the disk: the client may have the rest."""
        ...

    async def on_failure(self, error: BaseException) -> None:
        """The request failed after it was admitted, and the client has not gone. The error is raised afterwards."""
        ...


def _listener(admission: Admission, first_choice: int) -> AbortListener:
    return lambda index, usage: admission.on_aborted(first_choice + index, usage)
