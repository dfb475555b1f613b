"""All dashboards, in the order of their links."""

from deploy.grafana.generate import books, engine, latency, overview, routing, usage

DASHBOARDS = (
    overview.DASHBOARD,
    latency.DASHBOARD,
    engine.DASHBOARD,
    routing.DASHBOARD,
    usage.DASHBOARD,
    books.DASHBOARD,
)
