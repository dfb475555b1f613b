"""The process that reads and packs adapters: the same adapter as packed here, and what happens when it fails."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.adapters.child_process import environment
from engine.adapters.errors import UnsupportedAdapter
from engine.adapters.folder import digest_of, read_unchanged
from engine.adapters.packer import PackRequest
from engine.adapters.source import AdapterSource
from engine.checkpoints.checkpoint import open_checkpoint
from engine.errors import EngineError
from engine.models.loader import load_model
from engine.models.native_model import NativeModel
from engine.runtime.adapter_reading import AdapterProcess, ProcessUnavailable, adapter_reader
from kernels.cpu.native.adapters import NativeAdapter
from kernels.cpu.native.library import load
from kernels.cpu.native_ops import NativeOps
from tests.support.peft_adapters import make_adapter

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)


@pytest.fixture(scope="module")
def model(tiny_folders: dict[str, Path]) -> NativeModel:
    checkpoint = open_checkpoint(tiny_folders["llama"])
    loaded = load_model(checkpoint, NativeOps(1), checkpoint.config.max_position)
    assert isinstance(loaded, NativeModel)
    return loaded


@pytest.fixture(scope="module")
def request_(
    model: NativeModel, tiny_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> PackRequest:
    folder = tmp_path_factory.mktemp("adapter")
    make_adapter(folder, tiny_folders["llama"])
    return PackRequest(AdapterSource(digest_of(folder), folder), model.config, model.adapter_layout)


@pytest.fixture
def endless(request_: PackRequest, tmp_path: Path) -> PackRequest:
    """Its config is a pipe into which nothing is written."""
    os.mkfifo(tmp_path / "adapter_config.json")
    return replace(request_, source=AdapterSource("0" * 64, tmp_path))


@pytest.fixture
def process() -> Iterator[AdapterProcess]:
    made = AdapterProcess()
    yield made
    made.close()
    assert not child_pids()


def child_pids() -> list[int]:
    """Processes that pack adapters for this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it has ended since
            continue
        if parent == os.getpid() and b"engine.adapters.packer" in command:
            found.append(int(entry.name))
    return found


def test_it_packs_what_this_process_would(process: AdapterProcess, request_: PackRequest, model: NativeModel) -> None:
    there = process.pack(request_)
    here = model.pack_adapter(read_unchanged(request_.source, request_.config))
    assert np.array_equal(there.memory, here.memory)
    assert there.rank == here.rank


def test_what_is_refused_ends_no_process(process: AdapterProcess, request_: PackRequest) -> None:
    changed = replace(request_, source=replace(request_.source, digest="0" * 64))
    with pytest.raises(UnsupportedAdapter, match="its files have changed"):
        process.pack(changed)
    pids = child_pids()
    assert process.pack(request_).rank
    assert child_pids() == pids


def test_a_killed_process_is_started_again(request_: PackRequest) -> None:
    process = AdapterProcess(pause_seconds=0)
    process.pack(request_)
    (pid,) = child_pids()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcessUnavailable, match="has ended"):
        process.pack(request_)
    assert process.pack(request_).rank
    assert child_pids() != [pid]
    process.close()


def test_one_that_takes_too_long_is_killed_and_not_asked_for_a_while(
    request_: PackRequest, endless: PackRequest
) -> None:
    process = AdapterProcess(seconds=0.5)
    for asked in (endless, request_):
        with pytest.raises(ProcessUnavailable):
            process.pack(asked)
        assert not child_pids()
    process.close()


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/python"])
def test_a_thread_reads_where_the_process_is_not_available(
    request_: PackRequest, model: NativeModel, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    process = AdapterProcess()
    reader = adapter_reader(model, model.config, process)
    here = model.pack_adapter(read_unchanged(request_.source, request_.config))
    read = reader.read(request_.source)
    assert isinstance(read, NativeAdapter)
    assert np.array_equal(read.memory, here.memory)
    process.close()


def test_closing_ends_what_is_in_progress(process: AdapterProcess, endless: PackRequest) -> None:
    with ThreadPoolExecutor(1) as pool:
        packing = pool.submit(process.pack, endless)
        while not child_pids():
            time.sleep(0.01)
        process.close()
        with pytest.raises(EngineError):
            packing.result(10)
    with pytest.raises(EngineError, match="closed"):
        process.pack(endless)
    assert not child_pids()


def test_it_ends_with_its_input_and_not_by_the_terminal() -> None:
    command = [sys.executable, "-m", "engine.adapters.packer"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment()) as child:
        status = Path(f"/proc/{child.pid}/status")
        while not _ignores_interrupts(status):
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        time.sleep(0.05)
        assert child.poll() is None
        child.communicate()
        assert child.returncode == 0


def _ignores_interrupts(status: Path) -> bool:
    (mask,) = (line.split()[1] for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("SigIgn"))
    return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)
