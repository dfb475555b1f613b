"""A stage of the run: each check and measurement on its own, in the time there is, written down as it comes."""

import json
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch

from benchmarks.gpu.scale import Scale

T = TypeVar("T")
Status = Literal["passed", "failed", "measured", "skipped"]


class DeviceLost(RuntimeError):
    """An error on the device from which its process does not recover. Nothing more can be computed there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one check (its error against a tolerance) or of one measurement (a value and its unit)."""

    stage: str
    name: str
    status: Status
    value: float | None = None
    unit: str = ""
    detail: str = ""

    def line(self) -> str:
        value = "" if self.value is None else f"{self.value:.4g} {self.unit}"
        return f"[{self.stage}] {self.status:8} {self.name}: {value} {self.detail}".rstrip()


class Stage:
    """Where a stage's code asks for the device and its size, and leaves its outcomes.

    Outcomes are printed, kept, and added to `file` at once, so that a stage which is cut keeps what it had.
    """

    def __init__(
        self, name: str, device: torch.device, scale: Scale, seconds: float, seed: int, file: Path | None = None
    ) -> None:
        self.name, self.device, self.scale = name, device, scale
        self.outcomes: list[Outcome] = []
        self._file = file
        self._end = time.monotonic() + seconds
        self.generator = torch.Generator(device).manual_seed(seed)
        self.rng = random.Random(seed)
        """Inputs are drawn from these."""

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def attempt(self, name: str, work: Callable[[], T]) -> T | None:
        """Do it unless the time is over. An error is an outcome, and ends the stage only where the device is lost.

        Raises:
            DeviceLost: the device answers nothing any more.
        """
        if self.seconds_left <= 0:
            self._note(Outcome(self.name, name, "skipped", detail="no time left"))
            return None
        try:
            result = work()
            self.synchronize()
            return result
        except Exception as error:
            traceback.print_exc()
            self._note(Outcome(self.name, name, "failed", detail=f"{type(error).__name__}: {_first_line(error)}"))
        self._recover(name)
        return None

    def measured(self, name: str, value: float, unit: str, detail: str = "") -> None:
        self._note(Outcome(self.name, name, "measured", value, unit, detail))

    def checked(self, name: str, error: float, tolerance: float, detail: str = "") -> None:
        """An error that is NaN is above any tolerance."""
        status: Status = "passed" if error <= tolerance else "failed"
        self._note(Outcome(self.name, name, status, error, f"(at most {tolerance:g})", detail))

    def skipped(self, name: str, why: str) -> None:
        self._note(Outcome(self.name, name, "skipped", detail=why))

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def _recover(self, name: str) -> None:
        if not self.on_gpu:
            return
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        except Exception as error:
            raise DeviceLost(f"the device is lost after {name}: {_first_line(error)}") from error

    def _note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        print(outcome.line(), flush=True)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")


def read_outcomes(file: Path) -> list[Outcome]:
    """All that were written whole; the last line of a stage that was killed may not be."""
    outcomes = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            outcomes.append(Outcome(**json.loads(line)))
        except json.JSONDecodeError:
            continue
    return outcomes


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]
