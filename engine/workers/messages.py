"""The messages between an engine's client and its worker, in MessagePack."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from engine.config import EngineConfig, StatedSizes
from engine.errors import EngineError, InvalidParameter, TooManyGrammars, UnservableRequest
from engine.request import TokenDelta, Usage
from engine.runtime.core import EngineHealth
from engine.runtime.model_details import ModelDetails
from engine.runtime.submission import Submission
from engine.runtime.wait_prediction import LoadReport
from engine.sampling_defaults import SamplingDefaults
from engine.scheduling.stats import SchedulerStats


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Encoded as an array: its tag, and its fields in order."""


class Start(_Message, frozen=True):
    """The first message to a child process: the paths of its models by name, its engine's config, and the level below
    which it sends no log record. `sizes`: those of a step, which it completes by its device; None: those of the config.
    `listen`: the socket file on which it serves further clients; None: it has the one.
    """

    models: dict[str, Path]
    config: EngineConfig
    log_level: int
    sizes: StatedSizes | None = None
    listen: Path | None = None


class Submit(_Message, frozen=True):
    """The prompts of one call. `Accepted` or `Refused` answers it. `is_replay`: another worker had accepted them."""

    call: int
    model: str
    submissions: tuple[Submission, ...]
    is_replay: bool = False


class Pause(_Message, frozen=True):
    """Stop computing requests."""

    model: str
    request_ids: list[str]


class Resume(_Message, frozen=True):
    """Compute requests again."""

    model: str
    request_ids: list[str]


class Abort(_Message, frozen=True):
    """End requests. `Aborted` answers it."""

    call: int
    model: str
    request_ids: list[str]


class WatchPrefixes(_Message, frozen=True):
    """Send which prefix blocks of a model are cached, all of them first. `Prefixes` follow."""

    model: str


class Close(_Message, frozen=True):
    """End the process."""


ToWorker = Start | Submit | Pause | Resume | Abort | WatchPrefixes | Close


class ModelFacts(_Message, frozen=True):
    """A loaded model but for its text processor; the fields are those of `ServedModel`. `ranks`: of its classes."""

    name: str
    max_model_len: int
    windows: dict[str, int]
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    created: int
    version: str
    takes_grammars: bool
    prefix_cache: bool
    sampling_defaults: SamplingDefaults
    details: ModelDetails | None
    adapter_slots: int
    ranks: dict[str, int]
    load: LoadReport


class Loading(_Message, frozen=True):
    """Progress of the start: bytes of a model's weights."""

    model: str
    done: int
    total: int


class Failed(_Message, frozen=True):
    """The models cannot be loaded, or the worker's engine has ended. `kind`: name of the exception's class."""

    kind: str
    message: str


class Ready(_Message, frozen=True):
    """The models are loaded. `hardware`: see `Engine.hardware`."""

    models: list[ModelFacts]
    hardware: dict[str, str | int | float]
    stats: dict[str, SchedulerStats]


class Accepted(_Message, frozen=True):
    """All requests of the call are in the engine's inbox. Their deltas may arrive first."""

    call: int


class Refused(_Message, frozen=True):
    """No request of the call was submitted. `param`: the field at fault, of an `InvalidParameter`."""

    call: int
    kind: str
    message: str
    param: str | None = None


class Aborted(_Message, frozen=True):
    """The engine uses the requests no longer. `usages`: of those that had not ended."""

    call: int
    usages: dict[str, Usage]


class Deltas(_Message, frozen=True):
    """The output of one step."""

    deltas: list[TokenDelta]


class Load(_Message, frozen=True):
    """A model's load has changed."""

    model: str
    report: LoadReport


class Prefixes(_Message, frozen=True):
    """Blocks of a model's prefix cache that are `stored` and `evicted` since the last such message, as short hashes:
    see `prefix_events`.

    `epoch`: another one for each `WatchPrefixes`, and after changes were lost. `number`: of the message in its epoch,
    from 0; nothing that was said in other epochs counts. `complete`: the client now knows of all cached blocks.
    """

    model: str
    epoch: int
    number: int
    complete: bool
    stored: bytes
    evicted: bytes


class Stats(_Message, frozen=True):
    """A heartbeat with the engine's metrics."""

    health: EngineHealth
    models: dict[str, SchedulerStats]


class Draining(_Message, frozen=True):
    """The worker will end: it gets no new requests, and closes the connection after those that it has."""


class Log(_Message, frozen=True):
    """A log record. `level`: as `logging` numbers them."""

    name: str
    level: int
    message: str


FromWorker = Loading | Failed | Ready | Accepted | Refused | Aborted | Deltas | Load | Prefixes | Stats | Draining | Log


def _encode_other(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return dict(value)
    if isinstance(value, Path):
        return str(value)
    for kind in (int, float, str):  # of a subclass, as settings have them
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a message has a field of type {type(value).__name__}, which has no encoding")


def _decode_other(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise TypeError(f"a message has a field of type {kind.__name__}, which has no decoding")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other)
_to_worker = msgspec.msgpack.Decoder(ToWorker, dec_hook=_decode_other)
_from_worker = msgspec.msgpack.Decoder(FromWorker, dec_hook=_decode_other)


def encode(message: ToWorker | FromWorker) -> bytes:
    """The payload of a message."""
    return _encoder.encode(message)


def decode_to_worker(payload: bytes) -> ToWorker:
    """Raises: msgspec.MsgspecError: it is no such message."""
    message: ToWorker = _to_worker.decode(payload)
    return message


def decode_from_worker(payload: bytes) -> FromWorker:
    """Raises: msgspec.MsgspecError: it is no such message."""
    message: FromWorker = _from_worker.decode(payload)
    return message


def refusal(call: int, error: Exception) -> Refused:
    """The message for an error of a submission."""
    param = error.param if isinstance(error, InvalidParameter) else None
    return Refused(call, type(error).__name__, str(error), param)


def error_of(refused: Refused) -> Exception:
    """The error of a submission, as it was raised in the worker."""
    if refused.kind == InvalidParameter.__name__:
        return InvalidParameter(refused.param or "", refused.message)
    kinds: Mapping[str, type[Exception]] = {each.__name__: each for each in (TooManyGrammars, UnservableRequest)}
    return kinds.get(refused.kind, EngineError)(refused.message)
