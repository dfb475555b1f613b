"""Rules for values of the settings beyond their types and bounds, most of them in regard to other settings."""

from decimal import Decimal
from math import inf
from pathlib import Path

from pydantic import SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from gateway.billing.prices import parse_terms
from gateway.billing.terms import parse_tax_rate
from gateway.common.party import Party
from gateway.config.listen_address import ListenAddress
from gateway.config.named_models import located, require_model_name, served_so_far
from gateway.config.service_classes import StatedClass, check_classes
from gateway.config.store_urls import is_redis_url, normalise_database_url
from gateway.config.upstreams import StatedUpstream
from gateway.metering.kafka_cluster import KafkaCluster

MIN_PEPPER_CHARS = 32


class SettingRules(BaseSettings):
    """A base of `Settings`, which has the fields. A rule sees those that precede its own."""

    @field_validator("data_dir", "models_dir", "journal_path", "route_weights", check_fields=False)
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @field_validator("grpc_listen", check_fields=False)
    @classmethod
    def _listen_address(cls, address: str | None) -> str | None:
        return None if address is None else str(ListenAddress.parse(address))

    @field_validator("drain_delay_s", check_fields=False)
    @classmethod
    def _within_the_deadline(cls, delay_s: float, known: ValidationInfo) -> float:
        deadline_s = known.data.get("shutdown_deadline_s")
        if deadline_s is not None and delay_s > deadline_s:
            raise ValueError(f"must not be over shutdown_deadline_s, which is {deadline_s}")
        return delay_s

    @field_validator("models", check_fields=False)
    @classmethod
    def _servable_names(cls, models: dict[str, Path], known: ValidationInfo) -> dict[str, Path]:
        for name in models:
            require_model_name(name)
        return {name: located(path, known.data.get("models_dir")) for name, path in models.items()}

    @field_validator("upstreams", check_fields=False)
    @classmethod
    def _other_names(cls, upstreams: dict[str, StatedUpstream], known: ValidationInfo) -> dict[str, StatedUpstream]:
        for name in upstreams:
            require_model_name(name)
            if name in known.data.get("models", {}):
                raise ValueError(f"{name!r} is in models, too: an upstream must have another name")
        return upstreams

    @field_validator("small_models", check_fields=False)
    @classmethod
    def _served_pairs(cls, pairs: dict[str, str], known: ValidationInfo) -> dict[str, str]:
        served = served_so_far(known)
        for large, small in pairs.items():
            for name in (large, small):
                if name not in served:
                    raise ValueError(f"the model {name!r} is not among the served ones")
            if large == small or small in pairs:
                raise ValueError(f"{small!r} cannot be the small model of {large!r}: it must be another, without one")
        return pairs

    @field_validator("speculation", check_fields=False)
    @classmethod
    def _has_small_models(cls, speculation: str, known: ValidationInfo) -> str:
        if speculation == "draft" and not known.data.get("small_models", True):
            raise ValueError("draft needs small_models: they say which model drafts for which")
        return speculation

    @field_validator("model_versions", check_fields=False)
    @classmethod
    def _weighted_versions(
        cls, versions: dict[str, dict[str, float]], known: ValidationInfo
    ) -> dict[str, dict[str, float]]:
        served = served_so_far(known)
        for name, weights in versions.items():
            require_model_name(name)
            if unknown := next((each for each in weights if each not in served), None):
                raise ValueError(f"the model {unknown!r} is not among the served ones")
            if not (all(0 <= weight < inf for weight in weights.values()) and any(weights.values())):
                raise ValueError(f"the versions of {name!r} need weights of 0 and more, and one above 0")
        return versions

    @field_validator("aliases", check_fields=False)
    @classmethod
    def _free_names(cls, aliases: dict[str, str], known: ValidationInfo) -> dict[str, str]:
        for name, target in aliases.items():
            require_model_name(name)
            if name in served_so_far(known) or name in known.data.get("model_versions", {}):
                raise ValueError(f"{name!r} is the name of a model: an alias must have another")
            if target in aliases:
                raise ValueError(f"{name!r} leads to the alias {target!r}: name its model instead")
        return aliases

    @field_validator("database_url", check_fields=False)
    @classmethod
    def _with_async_driver(cls, url: SecretStr) -> SecretStr:
        return SecretStr(normalise_database_url(url.get_secret_value()))

    @field_validator("prices", check_fields=False)
    @classmethod
    def _chargeable(cls, prices: dict[str, tuple[Decimal, ...]]) -> dict[str, tuple[Decimal, ...]]:
        for model, stated in prices.items():
            parse_terms(model, stated)
        return prices

    @field_validator("issuer_name", "issuer_address", "issuer_tax_id", check_fields=False)
    @classmethod
    def _on_an_invoice(cls, text: str, info: ValidationInfo) -> str:
        Party(**{str(info.field_name).removeprefix("issuer_"): text})
        return text

    @field_validator("invoice_tax_percent", check_fields=False)
    @classmethod
    def _tax_rate(cls, percent: Decimal) -> Decimal:
        parse_tax_rate(percent)
        return percent

    @field_validator("service_classes", check_fields=False)
    @classmethod
    def _distinct_classes(cls, classes: dict[str, StatedClass]) -> dict[str, StatedClass]:
        check_classes(classes)
        return classes

    @field_validator("redis_url", "sessions_redis_url", check_fields=False)
    @classmethod
    def _redis(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not is_redis_url(url.get_secret_value()):
            raise ValueError("must be a redis://[[user]:password@]host[:port][/database], rediss:// or unix:// URL")
        return url

    @field_validator("kafka_url", check_fields=False)
    @classmethod
    def _kafka(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            KafkaCluster.from_url(url.get_secret_value())
        return url

    @field_validator("key_pepper", check_fields=False)
    @classmethod
    def _long_pepper(cls, pepper: SecretStr | None) -> SecretStr | None:
        if pepper is not None and len(pepper.get_secret_value()) < MIN_PEPPER_CHARS:
            raise ValueError(f"must have at least {MIN_PEPPER_CHARS} characters")
        return pepper
