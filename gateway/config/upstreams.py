"""The settings of models that other servers run."""

import os
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from gateway.errors import OperatorError


class StatedUpstream(BaseModel):
    """One table `[upstreams.NAME]`: an OpenAI-compatible server that runs the model NAME.

    `url`: its base URL, up to and with `/v1`. `model`: the name there; None: NAME. `api_key`: its bearer token;
    `api_key_env`, `api_key_file`: the variable or the file that has it. `tokenizer`: a Hugging Face folder, or a
    `tokenizer.json` in one, by which prompts are counted; None: estimated until the server reports them.
    `max_model_len`: context window in tokens; None: that of the server's `/models`, else 32,768. `max_concurrent`:
    requests that are sent at a time; further ones wait. `connect_timeout_s`; `first_byte_timeout_s`: until an answer
    begins; `read_timeout_s`: between two of its parts. `probe_every_s`: interval of health checks. `running_usage`:
    whether the server is asked for the usage in every chunk (vLLM's `continuous_usage_stats`); auto: if it is vLLM or
    Turnpike.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str
    model: str | None = Field(default=None, min_length=1, max_length=512)
    api_key: SecretStr | None = None
    api_key_env: str | None = Field(default=None, min_length=1)
    api_key_file: Path | None = None
    tokenizer: Path | None = None
    max_model_len: int | None = Field(default=None, ge=2)
    max_concurrent: int = Field(default=256, ge=1, le=65_536)
    connect_timeout_s: float = Field(default=5.0, gt=0, le=600)
    first_byte_timeout_s: float = Field(default=120.0, gt=0, le=3600)
    read_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    probe_every_s: float = Field(default=10.0, ge=0.05, le=3600)
    running_usage: Literal["auto", "on", "off"] = "auto"

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        parts = urlsplit(url)
        if not (url.isascii() and url.isprintable()) or " " in url:
            raise ValueError("has characters that no URL may have")
        if (
            parts.port == 0
            or parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or parts.fragment
        ):
            raise ValueError("must be an http:// or https:// URL such as http://host:8000/v1")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must have no user or password: set api_key")
        return url.rstrip("/")

    @field_validator("tokenizer", "api_key_file")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @model_validator(mode="after")
    def _one_key(self) -> "StatedUpstream":
        if sum(each is not None for each in (self.api_key, self.api_key_env, self.api_key_file)) > 1:
            raise ValueError("api_key, api_key_env and api_key_file exclude one another")
        return self

    def secret(self) -> str | None:
        """The server's API key; None: it needs none.

        Raises:
            OperatorError: the variable is not set, or the file cannot be read.
        """
        secret = self._read()
        if secret is not None and not (secret.isascii() and secret.isprintable()):
            raise OperatorError(f"upstreams: the API key of {self.url} has characters that no HTTP header may have")
        return secret

    def readable_secret(self) -> str | None:
        """The same, or None where it cannot be read."""
        try:
            return self.secret()
        except OperatorError:
            return None

    def _read(self) -> str | None:
        if self.api_key is not None:
            return self.api_key.get_secret_value()
        if self.api_key_env is not None:
            if not (value := os.environ.get(self.api_key_env)):
                raise OperatorError(f"upstreams: the variable {self.api_key_env} of api_key_env is not set")
            return value
        if self.api_key_file is not None:
            try:
                value = self.api_key_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                reason = type(error).__name__
                raise OperatorError(f"upstreams: api_key_file {self.api_key_file} cannot be read ({reason})") from None
            if not value:
                raise OperatorError(f"upstreams: api_key_file {self.api_key_file} is empty")
            return value
        return None
