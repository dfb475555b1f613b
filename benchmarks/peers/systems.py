"""The servers that take part: what each is called, what it serves, how it is started."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.peers import llama_cpp, vllm
from benchmarks.peers.environment import installed
from benchmarks.peers.server import Launch, Server
from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import BLOCK_TOKENS
from kernels.layout import int8_block_bytes
from tests.support.servers import free_port

MIB = 1 << 20
_BF16_BYTES = 2
TURNPIKE, VLLM, LLAMA_CPP = "turnpike", "vllm", "llama.cpp"


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings that all servers of a run share. `context`: most tokens of a sequence. `sequences`: most at a time.
    `scratch`: a folder that is thrown away. `speculation` is Turnpike's own; the peers draft nothing."""

    threads: int
    context: int
    sequences: int
    scratch: Path
    speculation: str = "off"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server on one set of weights."""

    name: str
    system: str
    model: Path
    quantize: Literal["none", "int8", "int4"] = "none"
    kv_dtype: Literal["auto", "int8"] = "auto"
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """PEFT folders, by the names that requests state as model."""

    def missing(self) -> str | None:
        """Why it cannot take part; None where it can."""
        if self.system == VLLM and not installed(vllm.folder(), vllm.STEPS):
            return "vLLM is not installed: python -m benchmarks.peers --prepare"
        if self.system == LLAMA_CPP and not llama_cpp.server().exists():
            return "llama.cpp is not built: python -m benchmarks.peers --prepare"
        return None

    def launch(self, setting: Setting) -> Launch:
        return _LAUNCHES[self.system](self, setting)

    def kv_mib(self, server: Server) -> float | None:
        """Memory for keys and values of sequences, including past ones that are kept for their prefixes. Turnpike's
        metrics state it in blocks; the peers allocate their maximum at their start."""
        if self.system != TURNPIKE:
            return None
        blocks = server.metric("turnpike_class_kv_blocks_held") + server.metric("turnpike_class_kv_blocks_cached")
        return blocks * self.block_bytes() / MIB

    def block_bytes(self) -> int:
        """Bytes in which Turnpike keeps 16 tokens of a sequence."""
        config = open_checkpoint(self.model).config
        if self.kv_dtype == "int8":
            return config.num_layers * int8_block_bytes(config.num_kv_heads, config.head_dim)
        return 2 * BLOCK_TOKENS * config.num_layers * config.num_kv_heads * config.head_dim * _BF16_BYTES


def _turnpike(contestant: Contestant, setting: Setting) -> Launch:
    program = str(Path(sys.executable).with_name("turnpike"))
    data_dir = setting.scratch / contestant.name.replace(" ", "-")
    folder = ("--data-dir", str(data_dir))

    surroundings = {
        "TURNPIKE_SPECULATION": setting.speculation,
        "TURNPIKE_MODELS": json.dumps({"model": str(contestant.model)}),
    }

    def call(*words: str) -> str:
        done = subprocess.run(
            [program, *words, *folder], check=True, capture_output=True, text=True, env=os.environ | surroundings
        )
        return done.stdout.strip()

    call("tenant", "create", "bench", "--tier", "standard")
    call("price", "set", "model", "--input", "1", "--output", "1")
    key = call("key", "create", "--tenant", "bench")
    for name, path in contestant.adapters.items():
        call("adapter", "upload", str(path), "--tenant", "bench", "--name", name)
    port = free_port()
    # As many tokens as llama.cpp has room for: more would be kept for their prefixes, which do not come again here.
    kv_bytes = setting.context * setting.sequences // BLOCK_TOKENS * contestant.block_bytes()
    command = [
        *(program, "serve", "--port", str(port), *folder),
        *("--threads", str(setting.threads), "--max-running", str(max(setting.sequences, 1))),
        *("--dtype", "bfloat16", "--quantize", contestant.quantize),
        *("--kv-dtype", contestant.kv_dtype, "--kv-cache-bytes", str(kv_bytes)),
    ]
    return Launch(command, port, surroundings, key)


def _vllm(contestant: Contestant, setting: Setting) -> Launch:
    port = free_port()
    command = vllm.command(contestant.model, port, context=setting.context, sequences=setting.sequences)
    if contestant.adapters:
        command += vllm.adapter_options(contestant.adapters)
    return Launch(command, port, vllm.surroundings(setting.threads, sorted(os.sched_getaffinity(0))))


def _llama_cpp(contestant: Contestant, setting: Setting) -> Launch:
    port = free_port()
    command = llama_cpp.command(
        contestant.model, port, context=setting.context, sequences=setting.sequences, threads=setting.threads
    )
    return Launch(command, port)


_LAUNCHES: Mapping[str, Callable[[Contestant, Setting], Launch]] = {
    TURNPIKE: _turnpike,
    VLLM: _vllm,
    LLAMA_CPP: _llama_cpp,
}
