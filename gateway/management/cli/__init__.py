"""The `turnpike` command. Each file is one group of subcommands.

Nothing heavy is imported before a command needs it: help and the tenant and key commands answer in a fraction of
a second, while loading torch takes several.
"""

from gateway.management.cli import (
    admin_keys,
    bench,
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

load = group(app, "bench", "Put load on any OpenAI-compatible server and report latencies.")
load.callback(help=bench.bench.__doc__, invoke_without_command=True)(bench.bench)
load.command("compare")(bench.compare)

tenant = group(app, "tenant", "Tenants and their tiers.")
tenant.command("create")(tenants.create)
tenant.command("list")(tenants.list_all)

key = group(app, "key", "API keys of tenants.")
key.command("create")(keys.create)
key.command("list")(keys.list_all)
key.command("revoke")(keys.revoke)

admin_key = group(app, "admin-key", "Keys of administrators, for the admin API.")
admin_key.command("create")(admin_keys.create)
admin_key.command("list")(admin_keys.list_all)
admin_key.command("revoke")(admin_keys.revoke)

limit = group(app, "limit", "Limits of tenants, keys and models.")
limit.command("set")(limits.set_limits)
limit.command("list")(limits.list_all)

session = group(app, "session", "Stored conversations.")
policies.add_policy(session, "session")

price = group(app, "price", "Prices of models.")
price.command("set")(prices.set_price)
price.command("list")(prices.list_all)

invoice = group(app, "invoice", "Monthly invoices of tenants.")
invoice.command("draft")(invoices.draft)
invoice.command("finalise")(invoices.finalise)
invoice.command("show")(invoices.show)
invoice.command("list")(invoices.list_all)
invoice.command("credit")(invoices.credit)

paid = group(app, "credit", "Credit that tenants paid in advance.")
paid.command("grant")(credit.grant)
paid.command("list")(credit.list_all)

routes = group(app, "route", "Routing of requests to models.")
policies.add_policy(routes, "routing")
routes.command("fit")(route.fit)
routes.command("score")(route.score)

model = group(app, "models", "Models that can be downloaded by name.")
model.command("fetch")(models.fetch)
model.command("list")(models.list_all)

db = group(app, "db", "The SQL database of tenants, keys and limits.")
db.command("upgrade")(database.upgrade)

app.command("sink")(sink.sink)
app.command("reconcile")(reconcile.reconcile)

kafka = group(app, "kafka", "The Kafka topic of usage events.")
kafka.command("create-topic")(sink.create_topic)


def main() -> None:
    app()
