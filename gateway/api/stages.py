"""The stages on a request's way to a model: one of each, whatever the endpoint."""

from dataclasses import dataclass

from gateway.api.placing import Placing
from gateway.api.route_stage import RouteStage, model_names
from gateway.api.service_classes import TierClasses
from gateway.api.session_stage import SessionStage
from gateway.routing.names import ModelNames
from gateway.services import Services
from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Stages:
    """What the endpoints share that have a model do something."""

    services: Services
    settings: Settings
    names: ModelNames
    classes: TierClasses
    sessions: SessionStage
    routes: RouteStage
    placing: Placing

    @classmethod
    def of(cls, services: Services, settings: Settings) -> "Stages":
        """Raises: UnusableWeights."""
        names = model_names(services.engine, settings)
        sessions = SessionStage(services, settings)
        return cls(
            services,
            settings,
            names,
            TierClasses(settings),
            sessions,
            RouteStage(services, settings, names),
            Placing(services, settings, sessions),
        )
