"""What runs next: the step plan, the scheduler that makes it, and the rules it follows. No torch.

`Scheduler` is the owner of all requests; `plan` holds what passes between it and an executor. One rule a file:
`order` (who goes first), `victims` (who gives way), `stopping` (who is done).
"""

from engine.scheduling.plan import Executor, PendingStep, RowResult, ScheduledRow, StepPlan, StepResult
from engine.scheduling.scheduler import Scheduler, SchedulerStats

__all__ = [
    "Executor",
    "PendingStep",
    "RowResult",
    "ScheduledRow",
    "Scheduler",
    "SchedulerStats",
    "StepPlan",
    "StepResult",
]
