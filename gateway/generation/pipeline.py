"""The way of every request through a model: shed, admit, submit, read, count, settle."""

import asyncio
from contextlib import AsyncExitStack

from engine.request import Usage
from gateway.config.settings import Settings
from gateway.generation.candidates import Candidates
from gateway.generation.cascade import decide
from gateway.generation.context import RequestContext
from gateway.generation.deltas import reading
from gateway.generation.engine_client import OutputStream
from gateway.generation.measurement import measuring
from gateway.generation.run import Run, Sink
from gateway.generation.services import Services
from gateway.generation.shed import ModelUnavailable
from gateway.generation.substitute import substituted
from gateway.http.errors import ClientGone
from gateway.http.run_to_completion import run_to_completion
from gateway.routing.router import Route
from gateway.speech.output_parser import OutputParser


class Pipeline:
    """Runs requests. What differs between endpoints is the sink of the answer."""

    def __init__(self, services: Services, settings: Settings) -> None:
        self._engine = services.engine
        self._keys = services.key_watch
        self._metrics = services.metrics
        self._candidates = Candidates(services, settings)

    async def run(self, context: RequestContext, route: Route, sink: Sink) -> None:
        """Run a request on the route's model, or on one that the route names in its place, and give its answer to the
        sink. However it ends, its holds are settled and its usage record is closed on return.

        Raises:
            APIError, QuotaExceeded, ChatTemplateError: no model takes it.
            ClientGone: the client disconnected.
            EngineError, InvalidKey, JournalUnavailable, TimeoutError: it failed on the way; `on_failure` was called.
        """
        with measuring(self._metrics, context.operation, route.served, context.client.serving.name) as measurement:
            async with (
                self._candidates.admitted(context, route, measurement) as admitted,
                AsyncExitStack() as reserved,
            ):
                run, trial = admitted, None
                if admitted.candidate.route.trial is not None:
                    run, trial = await decide(admitted, self._candidates, self._engine, self._keys, reserved)
                parser = sink.on_admitted(run)
                try:
                    async with asyncio.timeout(context.deadline_s):
                        if trial is None:
                            run = await self._answer(run, parser, sink, reserved)
                        else:
                            await self._read(run, trial.replayed(), 0, parser, sink)
                    await run_to_completion(_end(run, sink))
                except ClientGone:
                    raise
                except (Exception, asyncio.CancelledError) as error:
                    await sink.on_failure(error)
                    raise

    async def _answer(self, run: Run, parser: OutputParser, sink: Sink, reserved: AsyncExitStack) -> Run:
        """Compute the answer, or have the route's other model do so if the server of this one gives none. Returns the
        run that has answered."""
        try:
            await self._compute(run, parser, sink)
            return run
        except ModelUnavailable as error:
            run = await substituted(run, error, self._candidates, reserved)
        await self._compute(run, sink.on_admitted(run), sink)
        return run

    async def _compute(self, run: Run, parser: OutputParser, sink: Sink) -> None:
        """Submit the prompts, as many at a time as the context says, and read their answers."""
        prompts, each = run.prompts, run.context.choices_each
        at_a_time, submitted = run.context.prompts_at_a_time or len(prompts), 0
        try:
            while submitted < len(prompts):
                first, submitted = submitted, min(submitted + at_a_time, len(prompts))
                stream = run.submit(self._engine, prompts[first:submitted], first)
                await self._read(run, stream, first * each, parser, sink)
        except BaseException:
            for choice in range(submitted * each, run.choices):
                run.admission.on_aborted(choice, Usage(len(prompts[choice // each].token_ids), 0))
            raise

    async def _read(self, run: Run, stream: OutputStream, first_choice: int, parser: OutputParser, sink: Sink) -> None:
        client = run.context.client
        async with reading(stream, client.receive) as deltas:
            with self._keys.watching(client.principal.key_id, deltas.fail):
                await _pass_on(run, deltas, first_choice, parser, sink)


async def _pass_on(run: Run, deltas: OutputStream, first_choice: int, parser: OutputParser, sink: Sink) -> None:
    """Give the sink all deltas, counted, and record what it has sent."""
    while batch := await deltas.next_batch():
        outputs = [parser.parse(first_choice + delta.index, delta) for delta in batch]
        run.record(outputs)
        if await sink.on_outputs(outputs):
            # Before the next delta is asked for, which raises what has happened to the request or its client since.
            run.admission.record_sent()


async def _end(run: Run, sink: Sink) -> None:
    run.require_ended()
    run.measurement.record_usage(run.usage)
    await run.admission.complete()
    await sink.on_billed()
