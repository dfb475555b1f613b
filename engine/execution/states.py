"""The recurrent states of a step's rows, from its plan."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.scheduling.plan import ScheduledRow, StepPlan
from kernels.arrays import Floats, int_array
from kernels.delta import StateRows
from kernels.host import StepRows


class StepStateRows:
    """Copies states between slots and names the slots of each row. `memory`: float32 [slots, layers, words]."""

    def __init__(self, memory: Floats) -> None:
        self.memory = memory

    def begin(self, plan: StepPlan, rows: Sequence[ScheduledRow], step_rows: StepRows) -> StepRows:
        """Make the copies of a plan. Returns `step_rows` with the states of `rows`, which are in the same order."""
        assert plan.states is not None, "the plan of a model with states has none"
        for source, target in plan.states.copies:
            self.memory[target] = self.memory[source]
        place = {row.request: (index, row.start) for index, row in enumerate(rows)}
        saves = sorted(
            (place[request][0], position - place[request][1], slot) for request, position, slot in plan.states.saves
        )
        slots = int_array([row.request.state for row in rows])
        drafts = int_array([len(row.drafts) for row in rows])
        copies = np.reshape(int_array(plan.states.copies), (-1, 2))
        states = StateRows(self.memory, slots, drafts, np.reshape(int_array(saves), (-1, 3)), copies)
        return replace(step_rows, states=states)
