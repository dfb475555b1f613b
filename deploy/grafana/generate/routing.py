"""Who answers in whose place, why, and what that saves."""

from deploy.grafana.generate.panels import Dashboard, Form, Panel, PromQL, Row
from deploy.grafana.generate.promql import INSTANCES, MODEL, MODELS, increase, named, of_model, rate, share, total
from deploy.grafana.generate.usage_sql import ALL, DOLLARS

_ROUTED = "turnpike_routed_requests_total"
_SAVED = "turnpike_route_saved_dollars_total"
_ALL_LARGE = "turnpike_route_all_large_dollars_total"
_ESCALATED = total(increase(of_model(_ROUTED, 'reason="cascade_escalated"')))
_CASCADES = total(increase(of_model(_ROUTED, 'reason=~"cascade_.*"')))

_SHARES = Row(
    "Shares",
    (
        Panel(
            title="Answers by model",
            form=Form.PIE,
            unit="short",
            queries=(PromQL(total(increase(of_model(_ROUTED)), MODEL), named(MODEL)),),
            meaning="Which model answered, over the span that is shown.",
            bad="a large model that answers nearly all of `auto`: the score does not trust the small one.",
        ),
        Panel(
            title="Answers by reason",
            form=Form.PIE,
            unit="short",
            queries=(PromQL(total(increase(of_model(_ROUTED)), "reason"), named("reason")),),
            meaning="Why it was this model: `explicit` was named by the client, the others were chosen.",
            bad="`saturated` or `budget` for long: tenants get the small model where they would have had the large "
            "one.",
        ),
        Panel(
            title="Cascades that went on to the large model",
            form=Form.STAT,
            unit="percentunit",
            queries=(PromQL(share(_ESCALATED, _CASCADES)),),
            meaning="Of the answers that the small model tried first, those it was not sure of.",
            bad="over a half: then trying costs more than it saves. Lower the cascade's bar, or end it.",
            maximum=1,
        ),
        Panel(
            title="Answers a second by model",
            form=Form.STACK,
            unit="reqps",
            queries=(PromQL(total(rate(of_model(_ROUTED)), MODEL), named(MODEL)),),
            meaning="Which model answers.",
            bad="a sudden change of shares: a policy, a new version, or a queue that is saturated.",
            width=12,
        ),
        Panel(
            title="Answers a second by reason",
            form=Form.STACK,
            unit="reqps",
            queries=(PromQL(total(rate(of_model(_ROUTED)), "reason"), named("reason")),),
            meaning="Why it is that model.",
            bad="`saturated` that stays: the large model's queue does not empty.",
            width=12,
        ),
    ),
)

_MONEY = Row(
    "What it saves",
    (
        Panel(
            title="Saved",
            form=Form.STAT,
            unit="currencyUSD",
            queries=(PromQL(total(increase(of_model(_SAVED)))),),
            meaning="What answers would have cost from the large model, less what they cost, over the span that is "
            "shown.",
            bad="nothing, where tenants use `auto`.",
        ),
        Panel(
            title="Saved share",
            form=Form.STAT,
            unit="percentunit",
            queries=(PromQL(share(total(increase(of_model(_SAVED))), total(increase(of_model(_ALL_LARGE))))),),
            meaning="Of what the large model alone would have cost.",
            bad="a fall without a change of the traffic.",
            maximum=1,
        ),
        Panel(
            title="Saved by large model",
            form=Form.LINES,
            unit="currencyUSD",
            queries=(PromQL(f"3600 * {total(rate(of_model(_SAVED)), MODEL)}", named(MODEL)),),
            meaning="Dollars an hour, by the model in whose place others answered.",
            bad="see the shares.",
        ),
        Panel(
            title="Who answered what was asked",
            form=Form.TABLE,
            unit="short",
            queries=(
                ALL.table_of_events(
                    {"requested": "requested_model", "routed": "routed_model", "served": "served_model"}
                    | {"reason": "route_reason"},
                    "requests",
                    {
                        "requests": "toInt64(count())",
                        "answer tokens": "toInt64(sum(completion_tokens))",
                        "computed for a trial": "toInt64(sum(undelivered_tokens))",
                        "dollars": DOLLARS,
                    },
                ),
            ),
            meaning="From the events: the name that the client said, what routing chose, and the version that "
            "answered.",
            bad="names that clients should not use any more; many tokens that were computed and not sent.",
            width=24,
            columns={"dollars": "currencyUSD"},
        ),
    ),
)

DASHBOARD = Dashboard(
    slug="routing",
    title="Routing",
    question="Which model answers, why, and what does that save?",
    rows=(_SHARES, _MONEY),
    variables=(INSTANCES, MODELS),
    refresh="1m",
    period="6h",
)
