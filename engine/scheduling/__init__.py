"""The scheduler: it plans each step of one model and commits its result. No torch.

scheduler          the interface; `plan` has the values exchanged with an executor
request_table      all requests: their queues, slots and load sums
planner            the next step: `decode_blocks` and `admission` allocate, `drafting` adds drafts
micro_batches      which running requests a step of a pipeline has
commit, ledger     a step's result: tokens to requests, time to classes and requests
in_flight          the launched steps and their dropped rows
step_limits, allowance, class_activity
                   how large a step may be
cost, measured_work, wait, wait_calibration, step_slowdown
                   predicted times of steps and waits
order, fair_queue  which request comes first
victims            which request is preempted
stopping           when a request ends
stats, service_window, waiting_ages
                   metrics
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
