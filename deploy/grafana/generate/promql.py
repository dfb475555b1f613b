"""PromQL in the words of the gateway's metrics: what is chosen at the top of the page, rates, quantiles."""

from deploy.grafana.generate.panels import PromQL, Variable

INSTANCE = "instance"
MODEL = "gen_ai_request_model"
CLASS = "turnpike_class"
TIER = "turnpike_tier"
"""The class of a request, in the histograms."""
PROPOSER = "turnpike_proposer"

_VARIABLE_OF = {INSTANCE: "instance", MODEL: "model", CLASS: "class", TIER: "class"}

TTFT = "gen_ai_server_time_to_first_token_seconds"
TPOT = "gen_ai_server_time_per_output_token_seconds"
DURATION = "gen_ai_server_request_duration_seconds"

INSTANCES = Variable(
    name="instance", label="Gateway", query=PromQL("label_values(turnpike_kv_blocks, instance)"), many=True
)
MODELS = Variable(name="model", label="Model", query=PromQL(f"label_values(turnpike_kv_blocks, {MODEL})"), many=True)
CLASSES = Variable(
    name="class", label="Class", query=PromQL(f"label_values(turnpike_class_sequences_running, {CLASS})"), many=True
)


def chosen(metric: str, *labels: str, matching: str = "") -> str:
    """The metric's series of the chosen gateways, of what is chosen for `labels`, and `matching` as PromQL has it."""
    matchers = [f'{label}=~"${_VARIABLE_OF[label]}"' for label in (INSTANCE, *labels)]
    return f"{metric}{{{', '.join((*matchers, matching) if matching else matchers)}}}"


def of_model(metric: str, matching: str = "") -> str:
    return chosen(metric, MODEL, matching=matching)


def of_class(metric: str, matching: str = "") -> str:
    return chosen(metric, MODEL, CLASS, matching=matching)


def of_tier(metric: str, matching: str = "") -> str:
    return chosen(metric, MODEL, TIER, matching=matching)


def named(*labels: str) -> str:
    """A legend: the values of the labels."""
    return " ".join(f"{{{{{label}}}}}" for label in labels)


LATELY = "$__rate_interval"
"""As short as scrapes allow at this width of the page."""
SHOWN = "$__range"
"""All that the page shows."""
AS_ALERTED = "5m"
"""Time range of the alert on the same metric."""


def rate(series: str, span: str = LATELY) -> str:
    """A second's worth."""
    return f"rate({series}[{span}])"


def increase(series: str, span: str = SHOWN) -> str:
    return f"increase({series}[{span}])"


def total(expr: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def most(expr: str, *by: str) -> str:
    return f"max by ({', '.join(by)}) ({expr})" if by else f"max({expr})"


def share(part: str, whole: str) -> str:
    """Of sums. A part that was never counted is nothing, not unknown; a whole of nothing has no shares."""
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def quantile(q: float, histogram: str, *by: str, span: str = LATELY) -> str:
    """Over the chosen gateways."""
    buckets = total(rate(of_tier(f"{histogram}_bucket"), span), "le", *by)
    return f"histogram_quantile({q}, {buckets})"


def within(histogram: str, seconds: str, *by: str, span: str = LATELY) -> str:
    """The share that took no longer. `seconds` is an edge of the histogram as it is written there: this is exact, where
    a quantile is interpolated between edges."""
    part = total(rate(of_tier(f"{histogram}_bucket", f'le="{seconds}"'), span), *by)
    return share(part, total(rate(of_tier(f"{histogram}_count"), span), *by))
