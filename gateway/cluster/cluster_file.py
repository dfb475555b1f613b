"""The file of `turnpike up`: models, groups of workers, and how they scale."""

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gateway.config.setting_sources import ENV_PREFIX, SettingsError, xdg_folder
from gateway.config.settings import Settings
from gateway.config.worker_tls import StatedTLS

LOCAL = "local"


class _Stated(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClusterTLS(StatedTLS):
    """PEM files, at these paths on every machine. `server_name`: the name in the workers' certificate."""

    server_name: str


class WorkerGroup(_Stated):
    """Equal workers. `models`: of `[models]`; none: all. `cpus`, `gpus`: of each worker."""

    models: tuple[str, ...] = ()
    cpus: float = Field(default=1.0, ge=0)
    gpus: float = Field(default=0.0, ge=0)
    min: int = Field(default=1, ge=0, le=1000)
    max: int = Field(default=1, ge=1, le=1000)
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the workers, as `turnpike.toml` has them."""

    @model_validator(mode="after")
    def _min_below_max(self) -> "WorkerGroup":
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, and max {self.max}")
        return self

    @field_validator("settings")
    @classmethod
    def _known(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if unknown := sorted(settings.keys() - Settings.model_fields.keys()):
            raise ValueError(f"unknown setting {unknown[0]}")
        return settings


class Scaling(_Stated):
    """How many workers a group has. See `gateway.cluster.scaling`."""

    target_wait_s: float = Field(default=2.0, gt=0)
    """Predicted wait for the first token at the best worker."""
    target_requests: float = Field(default=16.0, gt=0)
    """Requests of a worker that run or wait: at most those that it computes at once without a queue."""
    service_class: str = "standard"
    """The class whose predicted wait counts."""
    look_back_s: float = Field(default=10.0, ge=0)
    """Time over which the load is averaged."""
    up_delay_s: float = Field(default=20.0, ge=0)
    """Time that more workers must have been needed without interruption."""
    down_delay_s: float = Field(default=300.0, ge=0)
    """Time that fewer workers must have been enough without interruption."""


class ClusterFile(_Stated):
    """A whole file. Relative paths are relative to its folder."""

    address: str = LOCAL
    """Of Ray's head: `local` starts one here, which ends with the command; `auto`, `host:6379` or `ray://host:10001`."""
    fleet_file: Path = Path("fleet.json")
    work_dir: Path = Field(default_factory=lambda: xdg_folder("XDG_STATE_HOME", ".local/state") / "workers")
    """Folder of the workers' logs and records, on each machine."""
    lease_s: float = Field(default=300.0, ge=10)
    """Time without any client, gateway or `turnpike up`, after which a worker ends by itself."""
    drain_s: int = Field(default=30, ge=0)
    """Time that requests get at a worker that is to end. The rest moves to other workers."""
    tls: ClusterTLS | None = None
    models: dict[str, Path]
    workers: dict[str, WorkerGroup]
    scaling: Scaling = Scaling()

    @model_validator(mode="after")
    def _consistent(self) -> "ClusterFile":
        if not self.models or not self.workers:
            raise ValueError("[models] and [workers.NAME] are needed")
        for name, group in self.workers.items():
            if unknown := next((each for each in group.models if each not in self.models), None):
                raise ValueError(f"workers.{name}: the model {unknown!r} is not in [models]")
        if self.tls is None and self.address != LOCAL:
            raise ValueError("[tls] is needed where workers may be on other machines: all that reach one can use it")
        return self

    def command(self, group: str) -> list[str]:
        """The arguments of `turnpike worker`, but for its address and its folder."""
        names = self.workers[group].models or tuple(self.models)
        stated = [part for name in names for part in ("--model", f"{name}={self.models[name]}")]
        return [*stated, "--lease", f"{self.lease_s:g}"]

    def environment(self, group: str) -> dict[str, str]:
        """The variables of a group's workers."""
        settings = {"shutdown_deadline_s": self.drain_s, **self.workers[group].settings, "log_format": "json"}
        if self.tls is not None:
            settings["worker_tls"] = self.tls.model_dump(mode="json", exclude={"server_name"})
        return {f"{ENV_PREFIX}{key.upper()}": _variable(value) for key, value in settings.items()}


def _variable(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)


def load_cluster_file(path: Path) -> ClusterFile:
    """Read a file.

    Raises:
        SettingsError: it cannot be read, or is invalid.
    """
    try:
        stated = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({type(error).__name__})") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from None
    try:
        cluster = ClusterFile(**stated)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise SettingsError(f"{path}: {key}: {message}" if key else f"{path}: {message}") from None
    folder = path.absolute().parent
    models = {name: folder / each.expanduser() for name, each in cluster.models.items()}
    paths = {"fleet_file": folder / cluster.fleet_file, "work_dir": folder / cluster.work_dir.expanduser()}
    tls = cluster.tls
    if tls is not None:
        files = {name: folder / getattr(tls, name).expanduser() for name in ("certificate", "key", "ca")}
        tls = tls.model_copy(update=files)
    return cluster.model_copy(update={"models": models, "tls": tls, **paths})
