"""turnpike audit"""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import OperatorError
from gateway.management.cli.managed import managed
from gateway.management.cli.options import AsJson, Limit, Since, TenantFilter, Until
from gateway.management.cli.output import print_list
from gateway.management.cli.parsing import optional_time

if TYPE_CHECKING:
    from gateway.management.client import AdminClient


@managed
def list_all(
    client: "AdminClient",
    tenant: TenantFilter = None,
    actor: Annotated[
        str | None, typer.Option("--actor", help="Only changes by this key or user, as in command-line:ada.")
    ] = None,
    action: Annotated[str | None, typer.Option("--action", help="Only this action, as in revoke.")] = None,
    resource: Annotated[str | None, typer.Option("--resource", help="Only this kind of record, as in key.")] = None,
    resource_id: Annotated[str | None, typer.Option("--resource-id", help="Only this record.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List audit entries, newest first: who changed what, when, from what to what."""
    query = {
        **client.tenant_query(tenant),
        "actor": actor,
        "action": action,
        "resource": resource,
        "resource_id": resource_id,
        "since": optional_time("--since", since),
        "until": optional_time("--until", until),
    }
    columns = (
        ("SEQUENCE", "sequence"),
        ("AT", "at"),
        ("ACTOR", "actor"),
        ("ACTION", "action"),
        ("RESOURCE", "resource"),
        ("RESOURCE ID", "resource_id"),
    )
    found = client.items("listAudit", query=query, limit=limit or None)
    print_list(found, columns, as_json=as_json, empty="no audit entries match")


@managed
def verify(client: "AdminClient") -> None:
    """Verify that no audit entry was altered or removed. Exits with 1 if one was."""
    broken = client.read("verifyAudit")["first_broken"]
    if broken is not None:
        raise OperatorError(f"audit entry {broken} is altered or missing")
    typer.echo("no audit entry was altered or removed")
