"""Simulates the scheduler without a model: a fake executor that checks what it reads, and seeded traffic. No torch.

`python -m engine.simulation --seed N` replays one seed; `--steps 1000000 --jobs 2` runs a campaign of many.
(Deterministic simulation testing, as in FoundationDB: Zhou et al. 2021.)

    traffic    arrivals and faults as values; patterns and faults draw them from a seed
    simulator  runs one seed in virtual time, with a device and a fake executor; report is the result
    fault_injector  applies the faults
    audited_pool, auditor, in_flight_audit, draft_audit, time_audit, oracle
               independent checks of KV blocks, of each step, its rows in flight, drafts, accounted time, and answers
    campaign   runs many seeds; shrink reduces a failing one to a small case
    fleet, fleet_worker, fleet_shape, fleet_traffic
               several replicas behind several gateways, with the real choice among them
    load       open-loop load, for benchmarks
"""

from engine.simulation.driver import Transcript, make_request, run_to_completion
from engine.simulation.fake_executor import FakeExecutor

__all__ = ["FakeExecutor", "Transcript", "make_request", "run_to_completion"]
