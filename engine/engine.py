"""The engine's public API: load models, stream and generate text."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

from engine.adapters.source import AdapterSource
from engine.completion import Completion, Prompt, collect, is_chat, token_ids_of
from engine.config import ADAPTER_CACHE_BYTES, EngineConfig
from engine.memory.kv_memory import InsufficientMemory
from engine.models.config import UnsupportedCheckpoint
from engine.request import STANDARD, PromptInput, SamplingParams, ServiceClass, TextDelta
from engine.runtime.adapter_loading import adapter_memory
from engine.runtime.adapter_reading import AdapterProcess, adapter_reader
from engine.runtime.core import EngineCore, EngineHealth
from engine.runtime.engine_call import EngineCall
from engine.runtime.expected_queue import PredictedWait
from engine.runtime.kv_copier import BlockMemory
from engine.runtime.kv_tier_loading import DiskUnavailable, remove_stale_files
from engine.runtime.loaded_model import LoadedModel, ServedModel
from engine.runtime.model_loading import LoadProgress, load
from engine.runtime.output_stream import OutputStream
from engine.runtime.ranks import parallel_sizes, start_ranks, threads_of_rank
from engine.runtime.request_handle import RequestHandle
from engine.runtime.reservation import Reservation
from engine.runtime.streams import AbortListener, OutputDispatchers
from engine.runtime.submission import Submitter, choices_of, requests_of
from engine.runtime.thread import EngineThread
from engine.scheduling.stats import SchedulerStats
from kernels.dispatch import select_ops, takes_gpu

if TYPE_CHECKING:
    from engine.execution.parallel.rank_processes import RankProcesses
    from kernels.cpu.native_ops import NativeOps
    from kernels.ops import Ops


class Engine:
    """Loaded models and the thread that steps them. A context manager: starts on entry, closes on exit."""

    def __init__(
        self,
        models: Sequence[LoadedModel],
        thread: EngineThread,
        salt_key: bytes | None,
        hardware: Mapping[str, str | int | float],
        *,
        step_timeout_seconds: float,
        adapter_cache_bytes: int = ADAPTER_CACHE_BYTES,
        ranks: "RankProcesses | None" = None,
    ) -> None:
        """`ranks`: those that compute the models with this process."""
        self.models: Mapping[str, ServedModel] = MappingProxyType({m.served.name: m.served for m in models})
        self.hardware = hardware
        """Results and choices of the start-up probe."""
        self._core = EngineCore(
            {m.served.name: (m.scheduler, m.runner, m.speculator) for m in models},
            thread,
            step_timeout_seconds=step_timeout_seconds,
        )
        self._ranks = ranks
        if ranks is not None:
            ranks.on_lost = self._core.lose
        self._adapter_process = AdapterProcess()
        for model in models:
            if model.served.adapter_slots:
                memory = adapter_memory(model.runner)
                reader = adapter_reader(memory, model.config, self._adapter_process)
                self._core.load_adapters(model.served.name, memory, reader, adapter_cache_bytes)
            if model.kv_store is not None:
                assert isinstance(model.runner, BlockMemory), "the runner's blocks cannot be copied"
                self._core.keep_kv(model.served.name, model.runner, model.kv_store)
        self._arrivals = itertools.count()
        self._submitter = Submitter(salt_key)
        self._dispatchers = OutputDispatchers()
        self._started = self._closed = False

    @classmethod
    def load(
        cls, models: Mapping[str, Path | str], config: EngineConfig | None = None, progress: LoadProgress | None = None
    ) -> Self:
        """Load models from Hugging Face folders and GGUF files, keyed by the names that they are served under.

        Raises:
            UnsupportedCheckpoint: a checkpoint cannot be served; the message names the key or the tensor.
            InsufficientMemory: there is not enough KV memory.
            DiskUnavailable: the folder for KV on disk cannot be used.
            DeviceUnavailable: the device that the config names cannot be used.
            RankLost: a process of several that were to compute the models has ended.
        """
        config = config or EngineConfig()
        thread = EngineThread(computes=not takes_gpu(config.device))
        try:
            loaded, hardware, ranks = thread.submit(lambda: _load_all(models, config, progress)).result()
        except BaseException:
            thread.close()
            raise
        return cls(
            loaded,
            thread,
            config.salt_key,
            hardware,
            step_timeout_seconds=config.step_timeout_seconds,
            adapter_cache_bytes=config.adapter_cache_bytes,
            ranks=ranks,
        )

    def start(self) -> None:
        """Start the engine thread. Idempotent."""
        if not self._started:
            self._started = True
            self._core.start()

    def close(self) -> None:
        """Abort running requests and stop the thread. Idempotent."""
        if not self._closed:
            self._closed = True
            self._core.close()
            if self._ranks is not None:
                self._ranks.close()
            self._adapter_process.close()
            for served in self.models.values():
                if served.grammars is not None:
                    served.grammars.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ready(self) -> bool:
        """Whether requests can be served: started, models warmed up while loading, the engine thread alive and no step
        hanging."""
        return self._started and not self._closed and self._core.alive

    @property
    def health(self) -> EngineHealth:
        """The state of the engine thread, for metrics."""
        return self._core.health

    @property
    def core(self) -> EngineCore:
        """The thread and its models, for callers that make requests of their own (`engine.workers`)."""
        return self._core

    def stats(self) -> Mapping[str, SchedulerStats]:
        """The current state and the counters of each model's scheduler."""
        return {name: self._core.stats(name) for name in self.models}

    def predicted_wait(self, model: str, service_class: ServiceClass, prompt_tokens: int) -> PredictedWait:
        """Predicted wait of a request of this class if it were submitted now, from the queue and the cost model."""
        return self._core.predicted_wait(model, service_class.name, prompt_tokens)

    def queue_depth(self, model: str) -> int:
        """Requests that wait for the model, of all classes, including reserved ones that will not fit at once."""
        return self._core.queue_depth(model)

    def reserve(self, model: str, service_class: ServiceClass) -> Reservation:
        """Reserve a place in the model's queue for a request that is let in now, until `stream` submits it. Only its
        class is known until `Reservation.expect` is called. Use as a context manager."""
        return self._core.reserve(model, service_class.name)

    def adapter_slots(self, model: str) -> int:
        """Adapters that the model can keep resident at once; 0: it takes none."""
        return self.models[model].adapter_slots

    def forget_tenant(self, tenant: str) -> None:
        """Drop and erase the KV that is stored on disk for a tenant.

        Raises:
            EngineError: the engine is closed.
        """
        for model in self.models:
            self._core.forget_tenant(model, self._submitter.salt_of(tenant))

    def reservations(self) -> Mapping[str, int]:
        """Open reservations by model: neither submitted nor released. 0 if no request is in progress."""
        return {name: self._core.reservations(name) for name in self.models}

    def submit(self, model: str, call: EngineCall) -> OutputStream:
        """Generate from token ids, for each prompt `n` choices. The call is submitted when the stream is entered; a
        grammar is compiled first.

        Leaving the stream aborts what has not been read to its end and frees its blocks before the next step. Unread
        deltas are bounded: beyond the bound the requests are paused.

        Raises, at the call:
            KeyError: the model is not loaded.
            UnservableRequest: a prompt is empty, or leaves no room for one token in the context window; or the model
                takes no adapters.
            InvalidParameter: a token id is outside the vocabulary, or a parameter is not supported with the model.
        Raises, when the stream is read:
            InvalidParameter: the grammar cannot be enforced.
            TooManyGrammars: too many grammars of the tenant are queued for compilation.
            GrammarGaveUp: the grammar cannot be followed to the end of the answer.
            AdapterUnavailable: the adapter cannot be loaded, or not in time.
            EngineError: a request fails inside the engine.
        """
        served = self.models[model]
        submissions = self._submitter.submissions(served, call)
        requests = [requests_of(served, submission, self._arrivals) for submission in submissions]
        handle = RequestHandle(self._core, served, requests, self._dispatchers.current, call.reservation)
        return OutputStream(choices_of(served, call.prompts, submissions), handle, call.on_abort)

    def stream(
        self,
        model: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        tenant: str = "",
        service_class: ServiceClass = STANDARD,
        continues_text: bool = False,
        on_abort: AbortListener | None = None,
        reservation: Reservation | None = None,
        adapter: AdapterSource | None = None,
    ) -> AsyncGenerator[TextDelta]:
        """As `submit` with one prompt; yields the deltas of all `n` choices, interleaved, in the order in which they
        are ready. Closing the iterator, or cancelling the task that iterates, aborts the request.
        """
        prompts = [PromptInput(prompt, params, request_id, continues_text)]
        call = EngineCall(prompts, tenant, service_class, on_abort, reservation, adapter)
        return _deltas(self.submit(model, call))

    def generate(
        self, model: str, prompts: Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[list[Completion]]:
        """Generate for all prompts together and wait: for each prompt its `n` completions. `params`: None stands for
        the model's sampling defaults.

        Not for use inside a running event loop; use `stream` there.
        """
        params = params or SamplingParams(**self.models[model].sampling_defaults.stated)
        text = self.models[model].text
        encoded = [(token_ids_of(text, prompt), not is_chat(prompt)) for prompt in prompts]
        return asyncio.run(self._collect_all(model, encoded, params))

    async def _collect_all(
        self, model: str, prompts: Sequence[tuple[Sequence[int], bool]], params: SamplingParams
    ) -> list[list[Completion]]:
        streams = [
            self.stream(model, prompt, params, continues_text=continues_text) for prompt, continues_text in prompts
        ]
        return await asyncio.gather(*(collect(stream, params.n) for stream in streams))


async def _deltas(stream: OutputStream) -> AsyncGenerator[TextDelta]:
    async with stream:
        while (delta := await stream.next()) is not None:
            yield delta


def _load_all(
    models: Mapping[str, Path | str], config: EngineConfig, progress: LoadProgress | None
) -> tuple[list[LoadedModel], dict[str, str | int | float], "RankProcesses | None"]:
    """Load all models. Runs on the engine thread."""
    sizes = parallel_sizes(models, config)
    dtype, threads = None if config.dtype == "auto" else config.dtype, threads_of_rank(config, sizes)
    ops = select_ops(dtype, threads, config.device, config.kv_dtype, native=sizes.ranks == 1)
    ranks = start_ranks(sizes, ops.describe(), config)
    try:
        loaded = _load_each(models, ops, config, progress, ranks)
    except BaseException:
        if ranks is not None:
            ranks.close()
        raise
    described = {f"kv memory of {model.served.name}": str(model.pool) for model in loaded}
    if ranks is not None:
        described |= {"tensor parallel": str(sizes.tensor), "pipeline parallel": str(sizes.stages)}
    return loaded, ops.describe() | described, ranks


def _load_each(
    models: Mapping[str, Path | str],
    ops: "NativeOps | Ops",
    config: EngineConfig,
    progress: LoadProgress | None,
    ranks: "RankProcesses | None",
) -> list[LoadedModel]:
    """The models in the order of the mapping. Those that draft are computed by this process alone."""
    remove_stale_files(config, models)
    loaded: dict[str, LoadedModel] = {}
    drafting = set(config.drafts.values())
    for name in sorted(models, key=lambda name: name in config.drafts):  # draft models first
        draft = config.drafts.get(name)
        if draft is not None and draft not in models:
            raise ValueError(f"draft model {draft} of {name} is not among the models")
        of_name = None if draft is None else loaded[draft]
        of_ranks = None if name in drafting else ranks
        try:
            loaded[name] = load(name, Path(models[name]), ops, config, 1 / len(models), progress, of_name, of_ranks)
        except UnsupportedCheckpoint as error:
            raise type(error)(f"model {name}: {models[name]}: {error}") from error
        except InsufficientMemory as error:
            raise InsufficientMemory(f"model {name}: {error}") from error
        except DiskUnavailable as error:
            raise DiskUnavailable(f"model {name}: {error}") from error
    return [loaded[name] for name in models]
