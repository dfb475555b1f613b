"""The stages of generating requests, one of each, shared by all endpoints."""

from dataclasses import dataclass

from gateway.config.settings import Settings
from gateway.generation.pipeline import Pipeline
from gateway.generation.route_stage import RouteStage, model_names
from gateway.generation.service_classes import TierClasses
from gateway.generation.services import Services
from gateway.generation.session_stage import SessionStage
from gateway.routing.names import ModelNames


@dataclass(frozen=True, slots=True)
class Stages:
    """Shared by the endpoints that run a model."""

    services: Services
    settings: Settings
    names: ModelNames
    classes: TierClasses
    sessions: SessionStage
    routes: RouteStage
    pipeline: Pipeline

    @classmethod
    def of(cls, services: Services, settings: Settings) -> "Stages":
        """Raises: UnusableWeights."""
        names = model_names(services.engine, settings)
        pipeline = Pipeline(services, settings)
        sessions = SessionStage(services, settings, pipeline)
        return cls(
            services,
            settings,
            names,
            TierClasses(settings),
            sessions,
            RouteStage(services, settings, names),
            pipeline,
        )
