"""Constructs the upstream models of the settings."""

from engine.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from gateway.config.engine_classes import engine_classes_of
from gateway.config.settings import Settings
from gateway.upstreams.model import UpstreamModel
from gateway.upstreams.text import upstream_text


def open_upstreams(settings: Settings) -> list[UpstreamModel]:
    """The upstreams, which connect on first use.

    Raises:
        OperatorError: a tokenizer or an API key cannot be read.
    """
    classes = [each.name for each in engine_classes_of(settings)]
    models = []
    for name, stated in settings.upstreams.items():
        sampling = settings.sampling_defaults.get(name)
        defaults = NO_DEFAULTS if sampling is None else SamplingDefaults(**sampling.model_dump())
        text = upstream_text(name, stated.tokenizer)
        models.append(UpstreamModel(name, stated, text, classes, secret=stated.secret(), sampling_defaults=defaults))
    return models
