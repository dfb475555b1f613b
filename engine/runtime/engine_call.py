"""A call of an engine, whichever process or machine computes it."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.adapters.source import AdapterSource
from engine.request import STANDARD, PromptInput, ServiceClass
from engine.runtime.reservation import Reservation
from engine.runtime.streams import AbortListener


@dataclass(frozen=True, slots=True)
class EngineCall:
    """Prompts that are submitted together, and read as one stream of choices, numbered from those of the first prompt.

    `tenant`: opaque name that separates prefix caches and shares capacity. `on_abort`: called on the event loop for
    each choice whose last delta was not read, aborted or failed, with its usage, as soon as the engine has released it.
    `reservation`: made for these prompts; consumed as they are submitted. `adapter`: the model is changed by it for
    these prompts; it is loaded first, if it is not resident.
    """

    prompts: Sequence[PromptInput]
    tenant: str = ""
    service_class: ServiceClass = STANDARD
    on_abort: AbortListener | None = None
    reservation: Reservation | None = None
    adapter: AdapterSource | None = None
