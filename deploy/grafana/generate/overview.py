"""Is premium safe? Who uses what? Is the money right?"""

from dataclasses import replace

from deploy.grafana.generate import usage_sql
from deploy.grafana.generate.panels import Dashboard, Form, Panel, PromQL, Row, Threshold
from deploy.grafana.generate.promql import (
    AS_ALERTED,
    CLASS,
    CLASSES,
    DURATION,
    INSTANCES,
    MODELS,
    SHOWN,
    TIER,
    TTFT,
    chosen,
    increase,
    most,
    named,
    of_class,
    quantile,
    rate,
    share,
    total,
    within,
)

_GUARDED = replace(CLASSES, label="Guarded class", first="premium", many=False)
_FAILED = total(rate(chosen("turnpike_requests_total", matching='outcome="failed"'), AS_ALERTED))
_ENDED = total(rate(chosen("turnpike_requests_total", matching='outcome=~"answered|failed"'), AS_ALERTED))

_PREMIUM = Row(
    "Is the guarded class safe?",
    (
        Panel(
            title="First token, p99",
            form=Form.STAT,
            unit="s",
            queries=(PromQL(quantile(0.99, TTFT, span=AS_ALERTED)),),
            meaning="99 of 100 requests of the guarded class have their first token within this, over five minutes.",
            bad="over 0.4 s, with more than a handful of requests. See Latency, then the queue and preemptions in "
            "Engine.",
            runbook="TurnpikePremiumFirstTokenSlow",
            width=4,
            height=5,
            thresholds=(Threshold(0.3, "orange"), Threshold(0.4)),
        ),
        Panel(
            title="First tokens within 400 ms",
            form=Form.STAT,
            unit="percentunit",
            queries=(PromQL(within(TTFT, "0.4", span=SHOWN)),),
            meaning="The share of the guarded class's requests whose first token came within 400 ms, over the span "
            "that is shown. Counted, not estimated.",
            bad="under 99 %.",
            runbook="TurnpikePremiumFirstTokenSlow",
            width=4,
            height=5,
            thresholds=(Threshold(0, "red"), Threshold(0.99, "orange"), Threshold(0.995, "green")),
            maximum=1,
        ),
        Panel(
            title="Longest wait now",
            form=Form.STAT,
            unit="s",
            queries=(PromQL(most(of_class("turnpike_class_queue_age_seconds"))),),
            meaning="How long the guarded class's oldest waiting request has waited.",
            bad="over its target for the first token, or growing: a step hangs, or its reserve is in use and the "
            "load too high.",
            runbook="TurnpikeQueueOld",
            width=4,
            height=5,
            thresholds=(Threshold(0.4, "orange"), Threshold(2)),
        ),
        Panel(
            title="Reserved blocks that are missing",
            form=Form.STAT,
            unit="short",
            queries=(PromQL(total(of_class("turnpike_class_kv_blocks_missing"))),),
            meaning="KV blocks that the guarded class was promised and could not have now.",
            bad="anything but 0: the promise of the reserve is broken, which is a bug.",
            runbook="TurnpikeReserveBreached",
            width=4,
            height=5,
            thresholds=(Threshold(1),),
        ),
        Panel(
            title="Requests that fail",
            form=Form.STAT,
            unit="percentunit",
            queries=(PromQL(share(_FAILED, _ENDED)),),
            meaning="Of requests that were answered or failed, of all classes. Refusals (4xx, limits) are no failures.",
            bad="over 0.5 % for long: what was promised is 99.5 % available.",
            runbook="TurnpikeErrorBudgetBurnsFast",
            width=4,
            height=5,
            thresholds=(Threshold(0.001, "orange"), Threshold(0.005)),
            maximum=1,
        ),
        Panel(
            title="Gateways that are ready",
            form=Form.STAT,
            unit="short",
            queries=(PromQL(total(chosen("turnpike_ready"))),),
            meaning="How many of the chosen gateways take requests.",
            bad="fewer than there should be. `/readyz` and the log of the others say why.",
            runbook="TurnpikeGatewayDown",
            width=4,
            height=5,
            thresholds=(Threshold(0, "red"), Threshold(1, "green")),
        ),
        Panel(
            title="First token of the guarded class",
            form=Form.LINES,
            unit="s",
            queries=tuple(PromQL(quantile(q, TTFT), f"p{100 * q:.0f}") for q in (0.5, 0.95, 0.99)),
            meaning="Time from a request's last byte to its first token.",
            bad="p99 over the line at 0.4 s while the share of requests that come to the queue is small.",
            runbook="TurnpikePremiumFirstTokenSlow",
            width=12,
            thresholds=(Threshold(0.4),),
        ),
        Panel(
            title="Requests by class",
            form=Form.LINES,
            unit="reqps",
            queries=(PromQL(total(rate(chosen(f"{DURATION}_count", matching='error_type=""')), TIER), named(TIER)),),
            meaning="Requests that were answered, of all classes and models.",
            bad="a fall to nothing while clients send, or a class that crowds out the others.",
            width=12,
        ),
    ),
)

_LOAD = Row(
    "What is under way?",
    (
        Panel(
            title="Sequences that run and wait",
            form=Form.LINES,
            unit="short",
            queries=(
                PromQL(total(chosen("turnpike_class_sequences_running"), CLASS), f"{named(CLASS)} run"),
                PromQL(total(chosen("turnpike_class_sequences_waiting"), CLASS), f"{named(CLASS)} wait"),
            ),
            meaning="By class, over all models.",
            bad="sequences of the guarded class that wait for longer than a step.",
            runbook="TurnpikeQueueOld",
        ),
        Panel(
            title="Tokens computed and spared",
            form=Form.LINES,
            unit="short",
            queries=(
                PromQL(total(rate(chosen("turnpike_scheduled_tokens_total"))), "computed a second"),
                PromQL(total(rate(chosen("turnpike_prefix_hit_tokens_total"))), "found in the prefix cache"),
            ),
            meaning="Tokens of prompts and answers that go through the engine, and those of prompts that need not.",
            bad="a fall of the second without a change of the traffic: the KV memory is too small to keep prefixes.",
        ),
        Panel(
            title="Turned away",
            form=Form.BARS,
            unit="reqps",
            queries=(PromQL(total(rate(chosen("turnpike_class_sheds_total")), "reason"), named("reason")),),
            meaning="Requests that got 429 or 503 before any work, by the error's code.",
            bad="`overloaded`: more load than this machine can take. Others are limits that tenants have reached.",
            runbook="TurnpikePremiumTurnedAway",
        ),
    ),
)

_BUDGET = 0.005
"""Fraction of answered and failed requests that may fail: the objective is 99.5 %."""

_HEALTH = Row(
    "Does it hold?",
    (
        Panel(
            title="Error budget burns",
            form=Form.LINES,
            unit="short",
            queries=tuple(
                PromQL(f"turnpike:requests:failed_ratio_{span} / {_BUDGET}", f"over {span}")
                for span in ("1h", "6h", "3d")
            ),
            meaning="How many times as fast as it may, so that 99.5 % is kept in 30 days. Of all gateways, as alerts "
            "see it.",
            bad="over 1 for days, over 6 for hours, over 14.4 for an hour: these wake somebody.",
            runbook="TurnpikeErrorBudgetBurns",
            thresholds=(Threshold(1, "orange"), Threshold(14.4)),
        ),
        Panel(
            title="Requests by outcome",
            form=Form.BARS,
            unit="reqps",
            queries=(PromQL(total(rate(chosen("turnpike_requests_total")), "outcome"), named("outcome")),),
            meaning="`refused` is what the client did wrong, `turned_away` limits and overload, `client_gone` who "
            "hung up.",
            bad="`failed`. Many `client_gone`: answers take longer than clients wait.",
            runbook="TurnpikeErrorBudgetBurnsFast",
        ),
        Panel(
            title="Engines that work",
            form=Form.STAT,
            unit="short",
            queries=(PromQL(total(chosen("turnpike_engine_healthy"))),),
            meaning="Gateways whose engine thread lives and whose steps do not hang.",
            bad="fewer than gateways: that one has left readiness, and only a restart brings it back.",
            runbook="TurnpikeEngineDown",
            width=4,
            thresholds=(Threshold(0, "red"), Threshold(1, "green")),
        ),
        Panel(
            title="Limits without Redis",
            form=Form.STAT,
            unit="short",
            queries=(
                PromQL(total(chosen("turnpike_limits_breaker_open")), "gateways"),
                PromQL(total(chosen("turnpike_limits_unmerged")), "not yet told"),
            ),
            meaning="Gateways that take Redis for away and give out their local share of limits, and what they have "
            "settled meanwhile that Redis has not heard of.",
            bad="anything but 0: limits are overspent by the local shares at most, and prepaid tenants are not served.",
            runbook="TurnpikeLimitsDegraded",
            width=4,
            thresholds=(Threshold(1),),
        ),
    ),
)

_TENANTS = Row(
    "Who uses what?",
    (
        Panel(
            title="Tenants by what they are charged",
            form=Form.TABLE,
            unit="short",
            queries=(usage_sql.ALL.table({"tenant": "tenant_id"}, "dollars", usage_sql.AMOUNTS, 10),),
            meaning="The ten tenants that are charged the most in the span that is shown.",
            bad="a tenant that was small yesterday.",
            width=16,
            columns=usage_sql.UNITS,
        ),
        Panel(
            title="Charged by model",
            form=Form.BARS,
            unit="currencyUSD",
            queries=(usage_sql.ALL.over_time_by("served_model", usage_sql.DOLLARS),),
            meaning="What answers cost their tenants, by the model that gave them.",
            bad="a gap: usage does not arrive. See Books.",
        ),
        Panel(
            title="Refused by tenant",
            form=Form.BARS,
            unit="reqps",
            queries=(
                PromQL(
                    f"topk(10, {total(rate(chosen('turnpike_refused_requests_total')), 'tenant')})",
                    named("tenant"),
                ),
            ),
            meaning="Refused requests of the ten tenants with most of them; `(unknown)` presented no key of a tenant, "
            "`(other)` are all beyond the first 100 tenants.",
            bad="a tenant that stays: its client retries in vain. The console's page Refusals has keys, models and "
            "limits.",
            runbook="TurnpikeTenantRefused",
            width=12,
        ),
        Panel(
            title="Refused by error code",
            form=Form.BARS,
            unit="reqps",
            queries=(PromQL(total(rate(chosen("turnpike_refused_requests_total")), "code"), named("code")),),
            meaning="Refused requests of all tenants, by the error code that clients got.",
            bad="`overloaded`, or a code that begins with a release.",
            runbook="TurnpikeTenantRefused",
            width=12,
        ),
    ),
)

_MONEY = Row(
    "Is the money right?",
    (
        Panel(
            title="Events that differ",
            form=Form.STAT,
            unit="short",
            queries=(PromQL(total(chosen("turnpike_reconciliation_drift_events"), "kind"), named("kind")),),
            meaning="What the last check of journals against ClickHouse found, by kind.",
            bad="anything but 0. `turnpike reconcile` names the events.",
            runbook="TurnpikeBooksDiffer",
            width=6,
            height=5,
            thresholds=(Threshold(1),),
        ),
        Panel(
            title="Usage that waits for delivery",
            form=Form.STAT,
            unit="short",
            queries=(PromQL(total(chosen("turnpike_usage_backlog_events"))),),
            meaning="Events in the journals that have not arrived in Kafka or ClickHouse.",
            bad="what grows: the other end is away or refuses. Nothing is lost while there is disk.",
            runbook="TurnpikeUsageBacklogOld",
            width=6,
            height=5,
            thresholds=(Threshold(1000, "orange"), Threshold(100_000)),
        ),
        Panel(
            title="Messages that sinks are behind",
            form=Form.STAT,
            unit="short",
            queries=(PromQL(total(most("turnpike_sink_lag_messages", "partition"))),),
            meaning="Between the ends of Kafka's partitions and what is in ClickHouse.",
            bad="what grows: no sink runs, or ClickHouse refuses.",
            runbook="TurnpikeSinkBehind",
            width=6,
            height=5,
            thresholds=(Threshold(1000, "orange"), Threshold(100_000)),
        ),
        Panel(
            title="Dead letters",
            form=Form.STAT,
            unit="short",
            queries=(
                PromQL(total(increase("turnpike_sink_dead_letters_total")), "no usage"),
                PromQL(total(increase("turnpike_sink_unauthenticated_total")), "not signed by a gateway"),
            ),
            meaning="Messages in the topic of usage that were put aside and are not billed, in the span that is shown.",
            bad=(
                "anything but 0: another producer writes to the topic, a gateway is newer than the sink, or the sink's "
                "pepper is another. See Books."
            ),
            runbook="TurnpikeDeadLetters",
            width=6,
            height=5,
            thresholds=(Threshold(1),),
        ),
    ),
)

DASHBOARD = Dashboard(
    slug="overview",
    title="Overview",
    question="Is premium safe? Who uses what? Is the money right?",
    rows=(_PREMIUM, _MONEY, _TENANTS, _HEALTH, _LOAD),
    variables=(INSTANCES, MODELS, _GUARDED),
    refresh="10s",
    period="1h",
)
