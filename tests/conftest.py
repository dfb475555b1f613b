"""Settings of every test run, and fixtures for every test."""

import gc
import os
import resource
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest
import torch

from tests.support import fast_interpreter
from tests.tiers import is_left_out, left_out, mark

# Kernels are also tested on machines with a GPU and little else.
if find_spec("sqlalchemy") is not None:
    from tests.support.service_fixtures import *  # noqa: F403

# A shared machine stalls; how long an example takes says nothing about the code.
hypothesis.settings.register_profile("turnpike", deadline=None)
hypothesis.settings.load_profile("turnpike")

# Workers of a parallel run (gw0, gw1 ...) keep to one core each, with the servers that they start: the engine takes
# as many threads as it has cores, and two of them on the same cores are slower than one after the other.
if _worker := os.environ.get("PYTEST_XDIST_WORKER"):
    _cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_cores[int(_worker.removeprefix("gw")) % len(_cores)]})
    torch.set_num_threads(1)  # it has counted the cores already; two threads on one wait for each other

# Kernels are interpreted where there is no GPU; Triton decides when it decorates them.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

_interpreter_is_fast = os.environ.get("TRITON_INTERPRET") != "1"  # compiled kernels need nothing

# Each time that ClickHouse's engine is opened in this process, it leaves files of /proc open.
_, _most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_most_files, _most_files))


LONGEST = (
    # of those that wait for servers and processes
    "tests/e2e/test_wheel.py",
    "tests/whole/test_whole.py",
    "tests/e2e/test_up.py",
    "tests/gateway/admin/test_openapi.py",
    "tests/deploy/test_dashboards.py",
    "tests/e2e/clients/test_clients.py",
    "tests/engine/simulation/test_simulation.py",
    "tests/engine/simulation/test_campaign.py",
    "tests/e2e/test_kill.py",
    "tests/engine/simulation/test_blocks_a_step.py",
    "tests/e2e/test_upstreams.py",
    "tests/e2e/test_gateway_processes.py",
    "tests/engine/test_smollm2.py",
    "tests/engine/simulation/test_ahead.py",
    "tests/pairs/test_pairs.py",
    "tests/deploy/test_alerts.py",
    "tests/e2e/test_open_streams.py",
    "tests/engine/speculation/test_controller.py",
    "tests/e2e/test_worker_kills.py",
    "tests/gateway/metering/test_sink_process.py",
    # of those that compute
    "tests/engine/execution/test_golden.py",
    "tests/engine/execution/parallel/test_rank_model.py",
    "tests/engine/execution/test_windows.py",
    "tests/engine/speculation/test_draft_model.py",
    "tests/engine/models/quantization/test_families.py",
    "tests/engine/execution/test_native.py",
    "tests/engine/execution/parallel/test_text.py",
    "tests/benchmarks/test_gpu.py",
    "tests/kernels/triton/test_compiled.py",
)
"""Files that take 20 s or more, the longest first, so that the workers of a parallel run end together. The source
distribution's tests are not among them: they need the wheel that others build, and would wait for it."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the garbage collector: modules and items stay, and to look through them takes two fifths of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    path = collection_path.relative_to(config.rootpath).as_posix()
    return (collection_path.suffix == ".py" and is_left_out(path, config)) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    mark(item)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Triton comes with the first module of tests that imports it, if any does."""
    global _interpreter_is_fast
    _interpreter_is_fast = _interpreter_is_fast or fast_interpreter.install()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if line := left_out(config):
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {path: place for place, path in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
