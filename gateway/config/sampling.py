"""Sampling parameters in the settings."""

from pydantic import BaseModel, ConfigDict, Field


class StatedSampling(BaseModel):
    """A model's sampling defaults as the operator states them; None: the model's own. The bounds are those of
    `engine.request.SamplingParams`, repeated to avoid importing the engine."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
