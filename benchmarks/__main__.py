"""All benchmarks, one after another, each in a process of its own: `python -m benchmarks`, or `make bench`."""

import subprocess
import sys
from collections.abc import Mapping

ALL = (
    *(
        "limits",
        "scheduler_step",
        "launch_host",
        "host_part",
        "fairness",
        "memory_waste",
        "window_memory",
        "weight_loading",
        "start",
        "resident",
        "accuracy",
    ),
    *(
        "products",
        "format_products",
        "attention",
        "adapters_step",
        "adapters",
        "sampling",
        "penalties",
        "prefix",
        "kv_tiers",
        "sessions",
        "step_share",
        "step_loop",
        "admission",
        "class_cost",
        "batches",
    ),
    *(
        "routing",
        "replica_routing",
        "route_overhead",
        "itl",
        "journal",
        "sse",
        "slow_readers",
        "open_streams",
        "gateway_growth",
        "metering",
        "dashboards",
        "premium",
        "overload",
    ),
    *(
        "plan",
        "serving",
        "speculation",
        "grammar",
        "engine_process",
        "pipeline",
        "worker_kills",
        "fleet_kills",
        "peers",
    ),
)
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "peers": ("--quick",),
    "worker_kills": ("--cycles", "25"),
    "fleet_kills": ("--cycles", "25"),
}
"""Arguments that differ from a benchmark's defaults: all passes with the peers take the better part of an hour."""
LEFT_OUT: Mapping[str, str] = {
    "gpu": "needs an NVIDIA GPU",
    "niceness": "is for who changes engine/runtime/thread.py",
    "first_minutes": "installs the project from the network",
    "at_once": "a server, started by sse",
    "weightless": "a server, started by sse, slow_readers and gateway_growth",
    "weightless_process": "its engine's process",
    "fake_replica": "a worker, started by open_streams",
}


def main() -> None:
    for name in ALL:
        print(f"== {name}", flush=True)
        command = (sys.executable, "-W", "ignore", "-m", f"benchmarks.{name}", *ARGUMENTS.get(name, ()))
        subprocess.run(command, check=True)
    for name, reason in LEFT_OUT.items():
        print(f"== {name} left out: {reason}", flush=True)


if __name__ == "__main__":
    main()
