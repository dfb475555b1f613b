"""Places a draft model on its target's GPU."""

from functools import partial
from typing import Protocol

from engine.config import BLOCK_TOKENS
from engine.execution.device.faults import device_errors
from engine.execution.device.graphs import SMALLEST_GRAPH, Capture, draft_model_sizes
from engine.execution.device.placement import DraftSteps, demanding_request, try_capture
from engine.speculation.device.drafter import CATCH_UP_TOKENS, DeviceDrafter
from engine.speculation.draft_memory import ORDINARY_TOKENS, DraftPlan, DraftRow


class NewDrafter(Protocol):
    """Makes a drafter of a loaded model."""

    def __call__(self, *, num_blocks: int, num_slots: int) -> DeviceDrafter: ...


def largest_drafting(new_drafter: NewDrafter, *, num_slots: int, most_rows: int, max_positions: int) -> DraftSteps:
    """The steps of a draft model that take most memory: those of a plan that catches up as far as it can, and of one
    that does not, as CUDA graphs have memory of their own. `most_rows`: most requests that are drafted for at once."""

    def run(catch_up_tokens: int) -> None:
        plan = largest_plan(most_rows, max_positions, catch_up_tokens)
        blocks = 1 + max(max(row.request.block_table) for row in plan.rows)
        new_drafter(num_blocks=blocks, num_slots=num_slots).run(plan)

    def capture_smallest(capture: Capture) -> None:
        new_drafter(num_blocks=1, num_slots=num_slots).capture_graphs(capture, SMALLEST_GRAPH)

    num_graphs = len(draft_model_sizes(num_slots, BLOCK_TOKENS, max_positions).keys)
    return DraftSteps([partial(run, CATCH_UP_TOKENS), partial(run, 0)], capture_smallest, num_graphs)


def largest_plan(most_rows: int, max_positions: int, catch_up_tokens: int) -> DraftPlan:
    """A plan of two drafts for each of `most_rows` requests, whose tokens share `catch_up_tokens`. All rows share dummy
    blocks; their KV is never read."""
    rows = []
    for slot in range(most_rows):
        tokens = max(1, min(max_positions - 1, ORDINARY_TOKENS + catch_up_tokens))
        catch_up_tokens -= max(0, tokens - ORDINARY_TOKENS)
        blocks = list(range(1 + tokens // BLOCK_TOKENS))
        rows.append(DraftRow(slot, demanding_request(slot, tokens, blocks), 0, tokens, 2, blocks))
    return DraftPlan(rows, [], [])


def place_drafter(new_drafter: NewDrafter, *, num_blocks: int, num_slots: int) -> DeviceDrafter:
    """A drafter with its graphs captured.

    A capture that fails costs speed alone: steps are then launched kernel by kernel.

    Raises:
        OutOfDeviceMemory: the KV memory or the graphs do not fit.
        DeviceLost: the capture broke the device.
    """
    with device_errors():
        drafter = new_drafter(num_blocks=num_blocks, num_slots=num_slots)
        try_capture(drafter.device, drafter.capture_graphs)
    return drafter
