"""What runs next: the step plan, the scheduler that makes it, and the rules it follows. No torch.

`Scheduler` is the face; `plan` holds what passes between it and an executor. Behind it, one job a file: `roster` (who
is here and where each stands), `planner` with `growth` and `admission` (what the next step is), `commit` and `ledger`
(what came of it), `flight` and `shortage` (what is under way, and what there was no room for), `guard`, `allowance` and
`wait` (how long steps and waits are). One rule a file: `order` and `fair_queue` (who goes first), `victims` and
`preemption_budget` (who gives way), `stopping` (who is done).
"""

from engine.scheduling.plan import Executor, PendingStep, RowResult, ScheduledRow, StepPlan, StepResult
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.stats import ClassStats, SchedulerStats

__all__ = [
    "ClassStats",
    "Executor",
    "PendingStep",
    "RowResult",
    "ScheduledRow",
    "Scheduler",
    "SchedulerStats",
    "StepPlan",
    "StepResult",
]
