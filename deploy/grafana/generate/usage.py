"""Usage and what it is charged, by tenant, key, model and class: all of it from ClickHouse, as the bills are."""

from deploy.grafana.generate.panels import Dashboard, Form, Panel, Row
from deploy.grafana.generate.usage_sql import (
    AMOUNTS,
    ANSWERED,
    CACHED,
    CHOSEN,
    CLASSES,
    COST,
    DOLLARS,
    ENGINE_HOURS,
    FRESH,
    GPU_HOUR,
    GRAIN,
    KEYS,
    MODELS,
    REQUESTS,
    TENANTS,
    UNITS,
)

_LATE = "a gap at the right edge that lasts: usage does not arrive, see Books."

_SUMS = Row(
    "In all",
    (
        Panel(
            title="Requests, tokens",
            form=Form.STAT,
            unit="short",
            queries=(
                CHOSEN.totals(
                    {"requests": REQUESTS, "prompt": FRESH, "cached": CACHED, "answers": ANSWERED},
                ),
            ),
            meaning="Requests that were admitted and have ended; their prompts' tokens, of which those from the "
            "prefix cache are told apart, and their answers'. Of whole minutes, hours or days that begin in the span.",
            bad=_LATE,
            width=12,
            height=5,
        ),
        Panel(
            title="Charged",
            form=Form.STAT,
            unit="currencyUSD",
            queries=(CHOSEN.totals({"dollars": DOLLARS}),),
            meaning="Each request at the price of its moment. Invoices are of the same events.",
            bad="far from what invoices say: see Books.",
            width=4,
            height=5,
        ),
        Panel(
            title="Share of prompts from the cache",
            form=Form.STAT,
            unit="percentunit",
            queries=(
                CHOSEN.totals({"share": "toFloat64(sum(cached_tokens)) / nullIf(toFloat64(sum(prompt_tokens)), 0)"}),
            ),
            meaning="Tokens of prompts that were not computed, and are charged as cached.",
            bad="a fall for a tenant that sends the same beginning each time.",
            width=4,
            height=5,
            maximum=1,
        ),
        Panel(
            title="Tenants, keys",
            form=Form.STAT,
            unit="short",
            queries=(
                CHOSEN.totals({"tenants": "toInt64(uniqExact(tenant_id))", "keys": "toInt64(uniqExact(key_id))"}),
            ),
            meaning="That were used in the span.",
            bad="fewer than usual: somebody cannot get in.",
            width=4,
            height=5,
        ),
    ),
)

_TIME = Row(
    "Over time",
    (
        Panel(
            title="Charged by tenant",
            form=Form.BARS,
            unit="currencyUSD",
            queries=(CHOSEN.over_time_by_largest("tenant_id", DOLLARS),),
            meaning="The ten tenants with the highest charge, and all others together.",
            bad=_LATE,
            width=6,
        ),
        Panel(
            title="Charged by key",
            form=Form.BARS,
            unit="currencyUSD",
            queries=(CHOSEN.over_time_by_largest("key_id", DOLLARS),),
            meaning="The ten keys with the highest charge, and all others together.",
            bad="a key that is busy at hours when nobody should use it.",
            width=6,
        ),
        Panel(
            title="Charged by model",
            form=Form.BARS,
            unit="currencyUSD",
            queries=(CHOSEN.over_time_by("served_model", DOLLARS),),
            meaning="By the model that answered.",
            bad=_LATE,
            width=6,
        ),
        Panel(
            title="Charged by class",
            form=Form.BARS,
            unit="currencyUSD",
            queries=(CHOSEN.over_time_by("tier", DOLLARS),),
            meaning="By the class of the tenant.",
            bad=_LATE,
            width=6,
        ),
        Panel(
            title="Tokens",
            form=Form.BARS,
            unit="short",
            queries=(CHOSEN.over_time({"prompt": FRESH, "cached": CACHED, "answers": ANSWERED}),),
            meaning="By what they are charged as.",
            bad="cached ones that vanish while prompts stay.",
        ),
        Panel(
            title="Requests by model",
            form=Form.BARS,
            unit="short",
            queries=(CHOSEN.over_time_by("served_model", REQUESTS),),
            meaning="By the model that answered.",
            bad=_LATE,
        ),
        Panel(
            title="Requests by class",
            form=Form.BARS,
            unit="short",
            queries=(CHOSEN.over_time_by("tier", REQUESTS),),
            meaning="By the class of the tenant.",
            bad=_LATE,
        ),
    ),
)

_TABLES = Row(
    "Who",
    (
        Panel(
            title="Tenants",
            form=Form.TABLE,
            unit="short",
            queries=(CHOSEN.table({"tenant": "tenant_id"}, "dollars", AMOUNTS),),
            meaning="The hundred tenants that are charged the most.",
            bad="a tenant far above its usual amount, before it has a bill of it.",
            width=12,
            height=10,
            columns=UNITS,
        ),
        Panel(
            title="Keys",
            form=Form.TABLE,
            unit="short",
            queries=(CHOSEN.table({"tenant": "tenant_id", "key": "key_id"}, "dollars", AMOUNTS),),
            meaning="By the public id of the key.",
            bad="a key that should not be in use any more: revoke it.",
            width=12,
            height=10,
            columns=UNITS,
        ),
        Panel(
            title="Models and classes",
            form=Form.TABLE,
            unit="short",
            queries=(CHOSEN.table({"model": "served_model", "class": "tier"}, "dollars", AMOUNTS),),
            meaning="By the model that answered and the class of the tenant.",
            bad="a mean first token of premium near that of standard, where they queue.",
            width=12,
            columns=UNITS,
        ),
        Panel(
            title="Margins",
            form=Form.TABLE,
            unit="short",
            queries=(
                CHOSEN.table(
                    {"tenant": "tenant_id", "class": "tier"},
                    "charged",
                    {
                        "charged": DOLLARS,
                        "engine hours": ENGINE_HOURS,
                        "cost": COST,
                        "margin": f"{DOLLARS} - {COST}",
                        "charged an engine hour": f"{DOLLARS} / nullIf({ENGINE_HOURS}, 0)",
                    },
                ),
            ),
            meaning="What tenants are charged against their part of the engine's time, at what an hour of it costs "
            "you: write that at the top. Only time that was used counts; the admin API's view of costs divides all of "
            "it.",
            bad="a margin below 0.",
            width=12,
            columns=dict.fromkeys(("charged", "cost", "margin", "charged an engine hour"), "currencyUSD")
            | {"engine hours": "h"},
        ),
    ),
)

_SERVICE = Row(
    "How they were served",
    (
        Panel(
            title="First token by tenant",
            form=Form.TABLE,
            unit="ms",
            queries=(
                CHOSEN.table_of_events(
                    {"tenant": "tenant_id", "class": "tier"},
                    "p99",
                    {
                        "p50": "quantileExact(0.5)(ttft_ms)",
                        "p95": "quantileExact(0.95)(ttft_ms)",
                        "p99": "quantileExact(0.99)(ttft_ms)",
                        "p99 of the queue": "quantileExact(0.99)(queue_ms)",
                        "requests": "toInt64(count())",
                    },
                ),
            ),
            meaning="From the events, exactly: the metrics know no tenants.",
            bad="a premium tenant with p99 over 400 ms.",
            width=12,
            columns={"requests": "short"},
        ),
        Panel(
            title="How requests ended",
            form=Form.TABLE,
            unit="short",
            queries=(
                CHOSEN.table_of_events(
                    {"tenant": "tenant_id", "ended": "finish_reason"},
                    "requests",
                    {
                        "requests": "toInt64(count())",
                        "preempted": "toInt64(sum(preemptions))",
                        "computed, not sent": "toInt64(sum(undelivered_tokens))",
                    },
                ),
            ),
            meaning="`quota` is a limit that was reached in the middle, `cancelled` a client that went away, "
            "`interrupted` a gateway that died.",
            bad="`error` or `interrupted`; many `cancelled` of one tenant: its timeout is shorter than its answers.",
            width=12,
        ),
    ),
)

DASHBOARD = Dashboard(
    slug="usage",
    title="Usage and cost",
    question="Who uses how much of what, and what is it charged?",
    rows=(_SUMS, _TIME, _TABLES, _SERVICE),
    variables=(TENANTS, KEYS, MODELS, CLASSES, GRAIN, GPU_HOUR),
    refresh="1m",
    period="24h",
)
