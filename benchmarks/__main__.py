"""All benchmarks, one after another, each in a process of its own: `python -m benchmarks`, or `make bench`."""

import subprocess
import sys

ALL = (
    *(
        "scheduler_step",
        "fairness",
        "memory_waste",
        "start",
        "resident",
        "accuracy",
        "products",
        "sampling",
        "prefix",
        "sessions",
        "step_share",
        "step_loop",
        "admission",
        "class_cost",
    ),
    *(
        "routing",
        "route_overhead",
        "journal",
        "sse",
        "slow_readers",
        "metering",
        "dashboards",
        "premium",
        "overload",
        "serving",
        "speculation",
        "grammar",
    ),
)

for name in ALL:
    print(f"== {name}", flush=True)
    subprocess.run([sys.executable, "-W", "ignore", "-m", f"benchmarks.{name}"], check=True)
