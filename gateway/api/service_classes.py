"""From a tenant's tier to the engine's class of service. A smaller priority is served first."""

from engine.request import STANDARD, ServiceClass
from gateway.tenancy.store import Tier

SERVICE_CLASSES = {
    Tier.PREMIUM: ServiceClass("premium", priority=0),
    Tier.STANDARD: STANDARD,
}
