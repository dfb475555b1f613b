"""The running requests of a pipeline, divided among as many steps in flight as it has stages (micro-batches: Huang et
al. 2019, GPipe; for decoding, as in vLLM).

The token that a step samples is known when the step is complete, so the next row of a request waits for it. If one step
had the rows of all requests, nothing could follow it, and all stages but one would be idle.
"""

from collections.abc import Sequence

from engine.request import Request
from engine.scheduling.stopping import ends_in_flight


def awaits_token(request: Request) -> bool:
    """Whether all known tokens of a running request are computed or in flight: a step in flight samples the next."""
    return request.scheduled >= len(request.tokens)


def held_back(running: Sequence[Request], micro_batches: int) -> frozenset[Request]:
    """The requests, of those that run, that have no row in the next step.

    Those whose token is in flight; and of the others with one token to compute, in the order of `running`, all after
    the first 1/`micro_batches` of the requests in decode. Rows of longer prompts are not held back: the chunks of a
    prompt follow one another through the stages.

    A request waits for at most `micro_batches` steps: as many steps in a row have rows of different requests, and
    together room for all of them.
    """
    decoding = [
        request for request in running if len(request.tokens) - request.scheduled <= 1 and not ends_in_flight(request)
    ]
    share = -(-len(decoding) // micro_batches)
    awaiting = [request for request in decoding if awaits_token(request)]
    ready = [request for request in decoding if not awaits_token(request)]
    return frozenset([*awaiting, *ready[share:]])
