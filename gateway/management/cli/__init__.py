"""The `turnpike` command. Each file is one group of subcommands.

Nothing heavy is imported before a command needs it: help and the tenant and key commands answer in a fraction of
a second, while loading torch takes several.
"""

from gateway.management.cli import (
    admin_keys,
    bench,
    config,
    credit,
    database,
    distill,
    doctor,
    invoices,
    keys,
    limits,
    models,
    policies,
    prices,
    reconcile,
    refusals,
    route,
    serve,
    sink,
    tenants,
    top,
)
from gateway.management.cli.app import group, root

app = root("A multi-tenant LLM API gateway with its own inference engine inside.")
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
app.command("top")(top.top)
app.command("distill")(distill.distill)

app.command("sink")(sink.sink)
app.command("reconcile")(reconcile.reconcile)
app.command("refusals")(refusals.refusals)

load = group(app, "bench", "Put load on any OpenAI-compatible server and report latencies.", {"compare": bench.compare})
load.callback(help=bench.bench.__doc__, invoke_without_command=True)(bench.bench)
group(app, "config", "The settings.", {"show": config.show, "example": config.example})
group(app, "tenant", "Tenants and their tiers.", {"create": tenants.create, "list": tenants.list_all})
group(app, "key", "API keys of tenants.", {"create": keys.create, "list": keys.list_all, "revoke": keys.revoke})
group(
    app,
    "admin-key",
    "Keys of administrators, for the admin API.",
    {"create": admin_keys.create, "list": admin_keys.list_all, "revoke": admin_keys.revoke},
)
group(app, "limit", "Limits of tenants, keys and models.", {"set": limits.set_limits, "list": limits.list_all})
group(app, "session", "Stored conversations.", policies.commands_of("session"))
group(app, "price", "Prices of models.", {"set": prices.set_price, "list": prices.list_all})
group(
    app,
    "invoice",
    "Monthly invoices of tenants.",
    {
        "draft": invoices.draft,
        "finalise": invoices.finalise,
        "show": invoices.show,
        "list": invoices.list_all,
        "credit": invoices.credit,
    },
)
group(app, "credit", "Credit that tenants paid in advance.", {"grant": credit.grant, "list": credit.list_all})
group(
    app,
    "route",
    "Routing of requests to models.",
    {**policies.commands_of("routing"), "fit": route.fit, "score": route.score},
)
group(app, "models", "Models that can be downloaded by name.", {"fetch": models.fetch, "list": models.list_all})
group(app, "db", "The SQL database of tenants, keys and limits.", {"upgrade": database.upgrade})
group(app, "kafka", "The Kafka topic of usage events.", {"create-topic": sink.create_topic})


def main() -> None:
    app()
