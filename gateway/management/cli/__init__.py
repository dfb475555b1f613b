"""The `turnpike` command. Each file is one group of subcommands.

Nothing heavy is imported before a command needs it: help, and commands on a running gateway, answer in a fraction of a
second, while loading torch takes several.
"""

from gateway.management.cli import (
    adapters,
    admin_keys,
    audit,
    bench,
    config,
    console,
    credit,
    database,
    distill,
    doctor,
    invoices,
    keys,
    limits,
    models,
    plan,
    policies,
    prices,
    reconcile,
    refusals,
    requests,
    route,
    serve,
    sink,
    tenants,
    top,
    up,
    usage,
    worker,
)
from gateway.management.cli.app import group, root

app = root(
    """A multi-tenant LLM API gateway with its own inference engine inside.

    Commands on tenants, keys, limits, prices, usage, bills and the audit log run in the gateway at --url (or
    $TURNPIKE_URL, with an administrator's key in $TURNPIKE_ADMIN_KEY), or else in the gateway that serves the data
    directory, or else in this process. The others run on this machine only: serve, worker, up and sink are the servers;
    db, kafka, config and doctor are about what they run on; admin-key makes the keys of --url; models, distill,
    route fit and plan are about files of models; bench and top are clients with an address of their own."""
)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
app.command("top")(top.top)
app.command("distill")(distill.distill)

app.command("sink")(sink.sink)
app.command("worker")(worker.worker)
app.command("up")(up.up)
app.command("reconcile")(reconcile.reconcile)
app.command("refusals")(refusals.refusals)

load = group(app, "bench", "Put load on any OpenAI-compatible server and report latencies.", {"compare": bench.compare})
load.callback(help=bench.bench.__doc__, invoke_without_command=True)(bench.bench)
planning = group(app, "plan", "Work out capacity before it is bought.", {"measure": plan.measure})
planning.callback(help=plan.plan.__doc__, invoke_without_command=True)(plan.plan)
group(app, "config", "The settings.", {"show": config.show, "example": config.example})
group(
    app,
    "tenant",
    "Tenants and their tiers.",
    {
        "create": tenants.create,
        "list": tenants.list_all,
        "show": tenants.show,
        "set-tier": tenants.set_tier,
        "suspend": tenants.suspend,
        "resume": tenants.resume,
    },
)
group(
    app,
    "key",
    "API keys of tenants.",
    {
        "create": keys.create,
        "list": keys.list_all,
        "show": keys.show,
        "use": keys.use,
        "rotate": keys.rotate,
        "set-grants": keys.set_grants,
        "revoke": keys.revoke,
    },
)
group(
    app,
    "admin-key",
    "Keys of administrators, for the admin API.",
    {"create": admin_keys.create, "list": admin_keys.list_all, "revoke": admin_keys.revoke},
)
group(app, "console", "The web console.", {"link": console.link})
group(
    app,
    "limit",
    "Limits of tenants, keys and models.",
    {"set": limits.set_limits, "list": limits.list_all, "show": limits.show},
)
group(
    app,
    "adapter",
    "Fine-tuned adapters (LoRA) of tenants.",
    {
        "upload": adapters.upload,
        "import": adapters.import_folder,
        "cancel": adapters.cancel,
        "list": adapters.list_all,
        "show": adapters.show,
        "set-weights": adapters.set_weights,
        "rollback": adapters.rollback,
        "set-price": adapters.set_price,
        "delete": adapters.delete,
    },
)
group(app, "adapter-limit", "Limits on tenants' adapters.", policies.commands_of("adapters"))
group(app, "session", "Stored conversations.", policies.commands_of("session"))
group(app, "bill-to", "Names and addresses on tenants' invoices.", policies.commands_of("bill_to"))
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
        "pay": invoices.pay,
        "void": invoices.void,
    },
)
group(
    app,
    "credit",
    "Credit that tenants paid in advance.",
    {"grant": credit.grant, "list": credit.list_all, "balance": credit.balance},
)
group(app, "usage", "Usage over time.", {"show": usage.show, "latencies": usage.latencies})
group(app, "cost", "Costs and revenue of engine time.", {"show": usage.costs})
group(app, "request", "Requests, one by one.", {"list": requests.list_all, "show": requests.show})
group(app, "audit", "The audit log of changes.", {"list": audit.list_all, "verify": audit.verify})
group(
    app,
    "route",
    "Routing of requests to models.",
    {**policies.commands_of("routing"), "shares": usage.shares, "fit": route.fit, "score": route.score},
)
group(app, "models", "Models on this machine.", {"add": models.add, "fetch": models.fetch, "list": models.list_all})
group(app, "db", "The SQL database of tenants, keys and limits.", {"upgrade": database.upgrade})
group(app, "kafka", "The Kafka topic of usage events.", {"create-topic": sink.create_topic})


def main() -> None:
    app()
