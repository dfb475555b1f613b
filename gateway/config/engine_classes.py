"""Converts the settings' service classes to the engine's."""

from engine.request import ServiceClass, ranked
from gateway.config.settings import Settings


def engine_classes_of(settings: Settings) -> tuple[ServiceClass, ...]:
    """The classes, highest priority first."""
    return ranked(
        ServiceClass(
            name,
            priority=stated.priority,
            reserved_fraction=stated.reserved_fraction,
            weight=stated.weight,
            ttft_target_ms=stated.ttft_target_ms,
            step_share=stated.step_share,
            itl_target_ms=stated.itl_target_ms,
            yields=stated.yields,
        )
        for name, stated in settings.service_classes.items()
    )
