"""Traffic, targets and prices from a TOML file."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from engine.planning.plan import TokenPrices
from engine.planning.targets import Target
from engine.planning.traffic import HOURS, DescribedTraffic, Lengths, Stream
from gateway.errors import OperatorError

_Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=10_000_000)]


class _Stated(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StatedLengths(_Stated):
    """`Lengths` of a stream."""

    mean: Annotated[float, Field(ge=1, le=10_000_000)]
    sigma: Annotated[float, Field(ge=0, le=3)] = 0.6
    max: Annotated[int, Field(ge=1, le=10_000_000)] | None = None

    def lengths(self) -> Lengths:
        return Lengths(self.mean, self.sigma, 1, self.max)


class StatedStream(_Stated):
    """One `[[traffic]]`. `requests_per_s`: a number, or 24 of them, one an hour."""

    tenant: Annotated[str, Field(min_length=1, max_length=256)]
    service_class: Annotated[str, Field(alias="class", min_length=1)]
    requests_per_s: tuple[Annotated[float, Field(ge=0, le=1e6)], ...]
    prompt_tokens: StatedLengths
    answer_tokens: StatedLengths
    prefix_tokens: _Count = 0
    turns: Annotated[float, Field(ge=1, le=24)] = 1.0
    think_s: _Positive = 10.0

    @field_validator("requests_per_s", mode="before")
    @classmethod
    def _rates(cls, value: object) -> object:
        rates = value if isinstance(value, list) else [value] * HOURS
        if len(rates) != HOURS:
            raise ValueError(f"must be one number, or {HOURS} of them, got {len(rates)}")
        return tuple(rates)

    @field_validator("prompt_tokens", "answer_tokens", mode="before")
    @classmethod
    def _mean(cls, value: object) -> object:
        return {"mean": value} if isinstance(value, int | float) else value

    def stream(self) -> Stream:
        return Stream(
            tenant=self.tenant,
            service_class=self.service_class,
            rates=self.requests_per_s,
            prompt=self.prompt_tokens.lengths(),
            answer=self.answer_tokens.lengths(),
            prefix_tokens=self.prefix_tokens,
            turns=self.turns,
            think_s=self.think_s,
        )


class StatedTarget(_Stated):
    """One `[targets.CLASS]`."""

    ttft_p99_ms: _Positive | None = None
    tpot_p99_ms: _Positive | None = None
    refused_share: Annotated[float, Field(ge=0, le=1)] = 0.01

    def target(self) -> Target:
        return Target(self.ttft_p99_ms, self.tpot_p99_ms, self.refused_share)


class StatedPrices(_Stated):
    """`[prices]`: dollars per million tokens. `cached`: None for the price of other prompt tokens."""

    prompt: Annotated[float, Field(ge=0, le=1e6)]
    answer: Annotated[float, Field(ge=0, le=1e6)]
    cached: Annotated[float, Field(ge=0, le=1e6)] | None = None

    def prices(self) -> TokenPrices:
        return TokenPrices(self.prompt, self.prompt if self.cached is None else self.cached, self.answer)


class _File(_Stated):
    traffic: tuple[StatedStream, ...] = ()
    targets: dict[str, StatedTarget] = Field(default_factory=dict)
    prices: StatedPrices | None = None


class Description(NamedTuple):
    """The content of a file. `traffic`: None where it has none."""

    traffic: DescribedTraffic | None
    targets: Mapping[str, Target]
    prices: TokenPrices | None


def read_description(path: Path) -> Description:
    """
    Raises:
        OperatorError: the file cannot be read, or a field is wrong; the message names it.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path} is not TOML: {error}") from None
    try:
        stated = _File.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise OperatorError(f"{path}: {field}: {first['msg'].removeprefix('Value error, ')}") from None
    traffic = DescribedTraffic(tuple(each.stream() for each in stated.traffic)) if stated.traffic else None
    return Description(
        traffic,
        {name: target.target() for name, target in stated.targets.items()},
        None if stated.prices is None else stated.prices.prices(),
    )
