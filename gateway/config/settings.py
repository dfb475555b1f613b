"""The settings and their sources.

Precedence per key, highest first. A table such as `[models]` is one key and is never merged:

1. command-line flags, given to `load_settings` as keywords;
2. environment variables `TURNPIKE_<KEY>`; an empty one counts as unset, a mapping is JSON;
3. `turnpike.toml` in the working directory;
4. `turnpike.toml` in the data directory, which therefore cannot set `data_dir` itself;
5. the defaults below.
"""

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    ByteSize,
    Field,
    IPvAnyNetwork,
    SecretStr,
    ValidationError,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as SourceError

from gateway.config.adapters import StatedAdapters
from gateway.config.files import StatedBatches, StatedFiles
from gateway.config.kv_disk import StatedKVDisk
from gateway.config.listen_address import StatedServerTLS
from gateway.config.origins import Origin
from gateway.config.sampling import StatedSampling
from gateway.config.service_classes import DEFAULT_CLASSES, StatedClass, decode_classes
from gateway.config.setting_rules import SettingRules
from gateway.config.setting_sources import (
    CONFIG_FILE,
    ENV_PREFIX,
    SettingsError,
    complaints_of,
    read_toml,
    refuse_unknown_variables,
    xdg_folder,
)
from gateway.config.upstreams import StatedUpstream
from gateway.config.worker_tls import StatedTLS
from gateway.sessions.policy import SessionWindow
from gateway.urls import StoreUrl

MOST_DRAFTS = 16
MAX_RANKS = 64
"""The engine's bounds, repeated to avoid importing the engine."""


class Settings(SettingRules):
    """All settings. Immutable; secrets are `SecretStr` and appear in no repr, log or error."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    data_dir: Path = Field(default_factory=lambda: xdg_folder("XDG_DATA_HOME", ".local/share"))
    models_dir: Path = Field(default_factory=lambda: xdg_folder("XDG_CACHE_HOME", ".cache") / "models")
    database_url: SecretStr = Field(
        default_factory=lambda known: SecretStr(f"sqlite:///{known['data_dir'] / 'turnpike.db'}")
    )
    key_pepper: SecretStr | None = None
    """Key of the HMAC of stored API keys, from which other keys are derived. None: the file in `data_dir` that
    `gateway.config.pepper` manages. Replicas that share a database, and their sinks, must share the pepper."""

    redis_url: SecretStr | None = None
    """Redis in which replicas share the usage of limits. None: each replica counts by itself."""
    sessions_redis_url: SecretStr | None = Field(default_factory=lambda known: known["redis_url"])
    """Redis in which replicas share sessions and stored responses. A separate one is recommended, since they use memory
    that limits need. None: each replica has its own."""
    limits_local_share: float = Field(default=0.2, gt=0, le=1)
    """Share of each limit that a replica grants by itself while Redis is unavailable."""

    session_max_bytes: ByteSize = Field(default=ByteSize(256 * 1024), ge=1024)
    """Size of a session's history as JSON; the oldest turns above it are dropped. The last answer may exceed it."""
    session_wait_s: float = Field(default=5.0, ge=0, le=60)
    """Time that a request waits for another one of its session before it is rejected (409)."""
    session_window: SessionWindow = SessionWindow.SLIDING
    """Default treatment of turns that exceed a session's window."""

    journal_path: Path = Field(default_factory=lambda known: known["data_dir"] / "usage" / "journal.db")
    """File to which usage is written before a client sees the end of its answer. It must be on a persistent disk and
    used by one process only."""
    journal_interval_ms: int = Field(default=50, ge=5, le=1000)
    """Part of a running stream that a crash can leave unbilled."""
    journal_min_free: ByteSize = Field(default=ByteSize(256 * 1024**2), ge=0)
    """Free space of the journal's disk below which new requests are rejected."""
    journal_retention_days: int = Field(default=7, ge=1, le=3650)
    """Time that delivered events stay in the journal, in which `reconcile` compares them one by one."""
    usage_accept_unsigned_until: AwareDatetime | None = None
    """Time until which sinks bill unsigned events; `reconcile` does not report stored ones from before it. None: 24
    hours after the upgrade of a store with unsigned events of a former version, otherwise never."""
    reconcile_every_s: int = Field(default=300, ge=60)
    """Interval at which the journal's sums are compared with those in `analytics_url`. Events delivered that long ago
    must be stored."""
    kafka_url: SecretStr | None = None
    """Kafka that transports usage to `turnpike sink`. None: the journal delivers to `analytics_url` directly."""
    kafka_topic: str = Field(default="turnpike.usage", pattern=r"^[A-Za-z0-9._-]{1,249}$")
    sink_metrics_port: int = Field(default=9464, ge=0, le=65535)
    """Port of `turnpike sink`'s metrics, on the address `host`. 0 disables them. Several sinks on one machine need
    different ports."""
    analytics_url: SecretStr = Field(
        default_factory=lambda known: SecretStr(f"chdb://{quote(str(known['data_dir'] / 'analytics'))}")
    )
    """The usage store: a ClickHouse server, or its embedded engine in a folder that one process uses."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    """0: any free port."""
    grpc_listen: str | None = None
    """Address `host:port` of the gRPC listener; port 0: any free one. None: there is none."""
    grpc_tls: StatedServerTLS | Literal["off"] | None = None
    """Certificate of the gRPC listener. None: plain text, on loopback alone. off: plain text anywhere, for a proxy that
    has the certificates."""
    gateway_processes: int = Field(default=1, ge=1, le=256)
    """Processes that serve the port together, over one engine process. More than 1 need `redis_url`, PostgreSQL and a
    ClickHouse server."""
    gateway_silence_s: int = Field(default=20, ge=1, le=3600)
    """One of several gateway processes whose event loop stands still for so long is killed and started again. It is
    to be well above a full garbage collection and any synchronous call on the loop, on a machine that is overloaded."""
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Addresses or networks, such as `10.0.0.0/8`, of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are
    trusted. Empty: the peer of a connection is the client."""
    shutdown_deadline_s: int = Field(default=20, ge=0)
    """Time that running streams get after SIGTERM. Including the cut-off and the delivery of usage, the process ends
    within Kubernetes' default of 30 s."""
    drain_delay_s: float = Field(default=0, ge=0)
    """Minimum time that the listener stays open after SIGTERM, so that load balancers see the readiness."""
    max_wait_s: int = Field(default=30, ge=1)
    """Predicted wait for the first token above which a request is rejected (429). A class's own bound, or ten times its
    target if that is smaller, takes precedence."""
    max_body_bytes: ByteSize = Field(default=ByteSize(4 * 1024**2), ge=1024)
    max_json_depth: int = Field(default=64, ge=8, le=512)
    cors_origins: tuple[Origin, ...] = ()
    """Origins of web pages that may call `/v1` from a browser; `*`: all."""

    models: dict[str, Path] = Field(default_factory=dict)
    """Served name -> checkpoint: a Hugging Face folder, a GGUF file, or the `owner/name` of a fetched repository."""
    upstreams: dict[str, StatedUpstream] = Field(default_factory=dict)
    """Served name -> model that another server with OpenAI's API runs, such as
    `{ url = "http://host:8000/v1", api_key_env = "VLLM_KEY" }`. It is sold like the models of this process."""
    sampling_defaults: dict[str, StatedSampling] = Field(default_factory=dict)
    """Served name -> sampling parameters of requests that do not state them, such as `{ temperature = 0.6 }`. They
    override those of the model, value by value."""
    generation_config: Literal["auto", "off"] = "auto"
    """Sampling parameters that a model's publisher recommends, from its generation_config.json, its GGUF file or the
    catalogue, apply to requests that do not state them (auto) or are not used (off)."""
    small_models: dict[str, str] = Field(default_factory=dict)
    """Large model -> small model that drafts for it and substitutes for it, both by served name."""
    embeddings: dict[str, Literal["mean", "last"]] = Field(default_factory=dict)
    """Served models that compute embeddings, with their pooling: the mean of an input's tokens, or the last token.
    Vectors have unit length."""
    model_versions: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Name -> served models with weights. A session or a tenant always gets the same version. The name may also be that
    of a served model."""
    aliases: dict[str, str] = Field(default_factory=dict)
    """Name -> served model, name of `model_versions`, or `auto`: names for all tenants, such as `gpt-4o-mini`. The
    aliases of a tenant have priority."""
    adapters: StatedAdapters = StatedAdapters()
    """Fine-tuned adapters (LoRA) of tenants: their folder, its bounds, and `roots` of adapters loaded by path."""
    files: StatedFiles = StatedFiles()
    """Files of tenants, such as the inputs and outputs of batches: their folder and its bounds."""
    batches: StatedBatches = StatedBatches()
    """Batches: how many of their lines run at a time, in which class, and their bounds."""
    saturated_queue: int = Field(default=10, ge=0)
    """Queue length of a large model above which its small model substitutes for it, for tenants that allow it. Requests
    of classes above standard stay in the queue."""
    route_weights: Path | None = None
    """Routing weights from `turnpike route fit` for this pair of models. None: the built-in weights."""
    prices: dict[str, tuple[Decimal, ...]] = Field(default_factory=dict)
    """Served name -> dollars per million tokens: [input, output] or [input, cached input, output]. A price that differs
    from the one in effect becomes a new version at the start. Prices of models listed here cannot be set otherwise."""
    invoice_grace_s: int = Field(default=3600, ge=0)
    """Time after a month's end in which late usage may arrive before the month can be invoiced."""
    issuer_name: str = ""
    """Name of the issuer on invoices. Like the other terms it is on invoices that are finalised from then on."""
    issuer_address: str = ""
    """Address of the issuer, its lines separated by line feeds."""
    issuer_tax_id: str = ""
    """Tax id of the issuer, such as a VAT number."""
    invoice_payment_days: int = Field(default=30, ge=0, le=366)
    """Days from the date of an invoice to its due date."""
    invoice_tax_percent: Decimal = Decimal(0)
    """Tax rate on invoices in percent, with at most three decimals."""
    gpu_hour_dollars: Decimal | None = Field(default=None, ge=0, le=1_000_000, decimal_places=9)
    """The operator's cost of a device hour in dollars. None: unknown."""
    service_classes: Annotated[dict[str, StatedClass], NoDecode, BeforeValidator(decode_classes)] = Field(
        default_factory=lambda: dict(DEFAULT_CLASSES)
    )
    """Name -> class; replaces all default classes. A tenant's tier is one of these names."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a usable GPU, otherwise the CPU."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    kv_dtype: Literal["auto", "fp8", "int8"] = "auto"
    """KV cache dtype. auto: the compute dtype. Half the memory: int8, on a GPU or with native kernels; fp8 on a GPU."""
    quantize: Literal["none", "int8", "int4", "fp8"] = "none"
    """Weight quantization of matrices that the checkpoint does not quantize; fp8 on a GPU only."""
    kv_cache_bytes: ByteSize | None = Field(default=None, ge=1024**2)
    """KV memory of each model, such as `4GiB`. None: a share of the free memory."""
    kv_disk: StatedKVDisk = StatedKVDisk()
    """KV blocks on disk: off unless it has a `folder`. Needs the extra 'kvdisk'."""
    max_model_len: int | None = Field(default=None, ge=2)
    max_running: int | None = Field(default=None, ge=1, le=4096)
    """Sequences that run at a time. None: 64 on a CPU, 256 on a GPU with 40 GiB or more, 128 on another."""
    step_tokens: int | None = Field(default=None, ge=1, le=65_536)
    """Tokens that a step computes at most. None: 512, 2,048 and 1,024 on these devices, and at least `max_running`."""
    chunk_tokens: int | None = Field(default=None, ge=1, le=65_536)
    """Prompt tokens of one request in a step at most. None: 512, 2,048 and 1,024 on these devices."""
    threads: int | None = Field(default=None, ge=1)
    step_timeout_s: int = Field(default=60, ge=1, le=3600)
    """Timeout of an engine step: its requests fail, and readiness is off."""
    tensor_parallel: Annotated[int, Field(ge=1, le=MAX_RANKS)] | Literal["auto"] = 1
    """Processes that compute each layer of the models together, on a CPU. auto: the fewest devices whose memory holds
    the models; all cores are one device."""
    pipeline_parallel: int = Field(default=1, ge=1, le=MAX_RANKS)
    """Stages into which the models' layers are cut, each on `tensor_parallel` processes of its own, on a CPU."""
    engine_process: bool | None = None
    """Run the engine in a process of its own, which is started again where it ends. None: where a GPU may be used, or
    several processes compute."""
    replicas: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Served name -> its workers: `["tcp://10.0.0.7:9010"]`, `["tcp+dns://workers:9010"]` for all addresses of a name,
    or `["file:///run/turnpike/fleet.json"]`. All models have some, or none has; `models` says where their tokenizers
    are."""
    replica_routing: Literal["predicted", "least_connections", "round_robin"] = "predicted"
    """Which worker of a model gets a request. predicted: the earliest first token, by its queue and its prefix cache.
    least_connections: the fewest requests. round_robin: each in turn."""
    worker_tls: StatedTLS | None = None
    """Certificates between gateways and `turnpike worker`. None: no TLS, which is for loopback alone."""
    speculation: Literal["auto", "off", "ngram", "draft"] = "auto"
    """Speculative decoding; it does not change the text. ngram: drafts from the request's own text. draft: drafts from
    the small model, and an error without one. auto: both where possible. The depth adapts to the measured gain."""
    max_draft_tokens: int = Field(default=8, ge=1, le=MOST_DRAFTS)
    """Maximum draft tokens of one request per step."""
    speculate_below: int = Field(default=33, ge=0)
    """Number of running requests of a model from which drafting stops."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    """auto: console on a terminal, JSON otherwise."""

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names of the models of this process and of upstreams; of the default models, none."""
        return (*self.models, *self.upstreams)

    @property
    def adapters_folder(self) -> Path:
        """The folder of adapters' files."""
        return self.adapters.folder or self.data_dir / "adapters"

    @property
    def files_folder(self) -> Path:
        """The folder of tenants' files."""
        return self.files.folder or self.data_dir / "files"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """One source, merged by whole keys: the library would merge mappings entry by entry."""
        refuse_unknown_variables(settings_cls)
        stated = read_toml(settings_cls, Path(CONFIG_FILE)) | env_settings() | init_settings()
        if "data_dir" in stated:
            data_dir = Path(str(stated["data_dir"])).expanduser()
        else:
            data_dir = xdg_folder("XDG_DATA_HOME", ".local/share")
        in_data_dir = data_dir / CONFIG_FILE
        if in_data_dir.resolve() != Path(CONFIG_FILE).resolve():
            kept = read_toml(settings_cls, in_data_dir)
            if "data_dir" in kept:
                raise SettingsError(f"{in_data_dir}: data_dir cannot be set in the data directory itself")
            stated = kept | stated
        return (InitSettingsSource(settings_cls, init_kwargs=stated),)

    def secret_values(self) -> tuple[str, ...]:
        """All secrets of the settings, for the redaction of logs."""
        pepper = self.key_pepper.get_secret_value() if self.key_pepper else ""
        stores = (self.database_url, self.redis_url, self.sessions_redis_url, self.kafka_url, self.analytics_url)
        urls = [url.get_secret_value() for url in stores if url is not None]
        passwords = [StoreUrl.split(url).password for url in urls]
        keys = [each.readable_secret() for each in self.upstreams.values()]
        return tuple(value for value in (pepper, *passwords, *map(unquote, passwords), *keys) if value)


def load_settings(**flags: Any) -> Settings:
    """Load the settings. A flag that is None counts as unset.

    Raises:
        SettingsError: an unknown key, a value out of range, or a file that is not TOML.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(complaints_of(error))) from None
    except SourceError as error:
        field = re.search(r'field "(\w+)"', str(error))
        raise SettingsError(f"{field[1]}: must be written as JSON" if field else str(error)) from None
