"""The models that this gateway serves: files, window, memory, price, load."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.billing.errors import NoPrice
from gateway.billing.money import dollars_per_million
from gateway.management.console.context import ConsoleContext
from gateway.management.console.formatting import aligned, gibibytes
from gateway.management.console.scheduler_figures import Look, ModelFigures
from gateway.management.console.screens import Page, PageRequest, Screens
from gateway.management.operations.roles import READERS

SCREENS = Screens()


@dataclass(frozen=True, slots=True)
class ModelLine:
    """A model for the page. `facts`: names and values, in order. `prices`: class and dollars per million tokens of
    input, cached input and output."""

    name: str
    is_healthy: bool
    running: int
    waiting: int
    tokens_per_second: str
    kv_used: str
    facts: tuple[tuple[str, str], ...]
    prices: tuple[tuple[str, ...], ...]


@SCREENS.get("/models", "models", "Models", READERS, section="Observe")
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    now, earlier = context.looks.look(context.engine.stats())
    return Page("models.html", {"models": [_line(context, name, now, earlier) for name in context.engine.models]})


def _line(context: ConsoleContext, name: str, now: Look, earlier: Look | None) -> ModelLine:
    stats = now.stats.get(name)
    upstream = context.upstreams.get(name)
    figures = None if stats is None or upstream is not None else ModelFigures.of(name, now, earlier)
    return ModelLine(
        name,
        context.engine.ready and (upstream is None or upstream.health == "up"),
        0 if stats is None else stats.running,
        0 if stats is None else stats.waiting,
        "–" if figures is None else figures.tokens_per_s or "–",
        "–" if figures is None else figures.used,
        tuple(_facts(context, name).items()),
        tuple(_prices(context, name)),
    )


def _facts(context: ConsoleContext, name: str) -> Mapping[str, str]:
    model = context.engine.models[name]
    names = context.names
    aliases = [alias for alias, target in names.aliases.items() if target == name]
    versions = [version for version, weights in names.versions.items() if name in weights]
    facts = {"Context window": f"{model.max_model_len:,} tokens"}
    smaller = {f"{tier}: {window:,}" for tier, window in model.windows.items() if window != model.max_model_len}
    if smaller:
        facts["Window of classes"] = ", ".join(sorted(smaller))
    if (details := model.details) is not None:
        facts |= {
            "File": str(details.path),
            "Format": details.format,
            "Quantization": details.quantization,
            "Weights": gibibytes(details.weight_bytes),
            "KV cache": gibibytes(details.kv_bytes),
        }
    if (upstream := context.upstreams.get(name)) is not None:
        facts |= {"Server": context.settings.upstreams[name].url, "Server's health": upstream.health}
    else:
        facts["Vocabulary"] = f"{model.vocab_size:,} tokens"
    facts["Version"] = model.version
    stated = {key: value for key, value in model.sampling_defaults.effective.items() if value is not None}
    facts["Sampling defaults"] = ", ".join(f"{key} {value}" for key, value in stated.items()) or "none"
    if names.small_of.get(name):
        facts["Small model of its pair"] = names.small_of[name]
    if aliases or versions:
        facts["Other names"] = ", ".join([*aliases, *versions])
    return facts


def _prices(context: ConsoleContext, name: str) -> list[tuple[str, ...]]:
    """Class, input, cached input and output, with the same decimals in a column; none for a class without a price."""
    found: list[tuple[str, ...]] = []
    for tier in context.classes.names:
        try:
            price = context.prices.price_of(name, tier, context.now())
        except NoPrice:
            continue
        kinds = (price.prompt, price.cached_prompt, price.completion)
        found.append((tier, *map(dollars_per_million, kinds)))
    if not found:
        return []
    tiers, *columns = zip(*found, strict=True)
    return list(zip(tiers, *map(aligned, columns), strict=True))
