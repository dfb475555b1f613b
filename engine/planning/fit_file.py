"""A fit with the machine and the model that it is of, as a JSON file."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from engine.planning.fitting import Fit
from engine.planning.hardware import Hardware
from engine.planning.origin import Origin
from engine.planning.step_features import MeasuredRange, StepFeatures
from engine.planning.step_times import LinearTimes

_KIND, _VERSION = "turnpike-step-times", 1


class InvalidFit(ValueError):
    """A file that is no fit. The message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMachine:
    """A machine with a model loaded: its rates, and the sizes that the engine has chosen. `weight_bytes`: of the
    checkpoint's files. `request_ns`: time of a request outside the engine's steps."""

    name: str
    memory_bytes: int
    bytes_s: float
    flop_s: float
    on_gpu: bool
    model: str
    weight_bytes: int
    num_blocks: int
    max_running: int
    step_tokens: int
    chunk_tokens: int
    max_model_len: int
    request_ns: int

    @property
    def hardware(self) -> Hardware:
        """The machine as a device."""
        return Hardware(
            name=self.name,
            memory_bytes=self.memory_bytes,
            bytes_s=self.bytes_s,
            flop_s=self.flop_s,
            on_gpu=self.on_gpu,
            origin=Origin.MEASURED,
        )


@dataclass(frozen=True, slots=True)
class StoredFit:
    """The content of a file."""

    machine: MeasuredMachine
    fit: Fit

    def save(self, path: Path) -> None:
        """Write the file."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    def to_json(self) -> dict[str, Any]:
        """The content as JSON has it."""
        times = self.fit.times
        coefficients = {name: getattr(times, name) for name in _COEFFICIENTS}
        return {
            "kind": _KIND,
            "version": _VERSION,
            "machine": asdict(self.machine),
            "coefficients": coefficients,
            "range": times.range.most._asdict(),
            "steps": self.fit.steps,
            "errors": {name: getattr(self.fit, f"{name}_error") for name in ("median", "p90", "total")},
            "noise": list(self.fit.noise),
        }

    @classmethod
    def load(cls, path: Path) -> Self:
        """
        Raises:
            InvalidFit: the file is not there, or is no fit of this version; the message names the field.
        """
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidFit(f"{path}: {error}") from None
        if not isinstance(stored, dict) or (stored.get("kind"), stored.get("version")) != (_KIND, _VERSION):
            raise InvalidFit(f"{path}: kind and version must be {_KIND} {_VERSION}: turnpike plan measure writes it")
        try:
            numbers = (float(stored["coefficients"][name]) for name in _COEFFICIENTS)
            step, token, pair, row, context = numbers
            most = StepFeatures(**{name: int(stored["range"][name]) for name in StepFeatures._fields})
            times = LinearTimes(step, token, pair, row, context, MeasuredRange(most))
            errors = stored["errors"]
            median, p90, total = (float(errors[name]) for name in ("median", "p90", "total"))
            fit = Fit(times, int(stored["steps"]), median, p90, total, tuple(map(float, stored["noise"])))
            return cls(MeasuredMachine(**stored["machine"]), fit)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidFit(f"{path}: a field is missing or malformed: {error}") from None


_COEFFICIENTS = ("step_ns", "prefill_token_ns", "prefill_pair_ns", "decode_row_ns", "decode_context_ns")
