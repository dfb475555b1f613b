"""turnpike adapter"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import OperatorError
from gateway.management.cli.managed import managed
from gateway.management.cli.options import AsJson, TenantFilter, TenantOption
from gateway.management.cli.output import print_json, print_list

if TYPE_CHECKING:
    from gateway.management.client import AdminClient

FILES = ("adapter_config.json", "adapter_model.safetensors")
PART_BYTES = 4 * 1024**2

Name = Annotated[str, typer.Argument(metavar="NAME", help="The adapter.")]
Base = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="MODEL", help="The base model. [default: the adapter's, or the only one that takes adapters]"
    ),
]
Activate = Annotated[
    bool, typer.Option("--activate/--no-activate", help="Whether the version gets all requests at once.")
]
NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="The name that requests state as model.")]


@managed
def upload(
    client: "AdminClient",
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that PEFT saved.")],
    tenant: TenantOption,
    name: NameOption,
    model: Base = None,
    activate: Activate = True,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="ID", help="Upload to continue, as an interrupted one printed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Upload an adapter, or a further version of it. Running gateways serve it within 5 seconds."""
    tenant_path = client.tenant_path(tenant)
    if resume is None:
        body = {"name": name, "model": model, "activate": activate, "files": _stated(folder)}
        begun = client.change("createAdapterUpload", tenant_path, body)
    else:
        begun = client.read("readAdapterUpload", {**tenant_path, "upload_id": resume})
    path = {**tenant_path, "upload_id": begun["id"]}
    try:
        for file in begun["files"]:
            _send(client, path, folder / file["name"], file)
    except (OperatorError, KeyboardInterrupt) as error:
        reason = str(error) or "interrupted"
        raise OperatorError(f"{reason} (to continue: the same command with --resume {begun['id']})") from error
    _print_added(client.change("completeAdapterUpload", path), as_json=as_json)


@managed
def import_folder(
    client: "AdminClient",
    path: Annotated[str, typer.Argument(metavar="PATH", help="A folder below one of the roots of [adapters].")],
    tenant: TenantOption,
    name: NameOption,
    model: Base = None,
    activate: Activate = True,
    as_json: AsJson = False,
) -> None:
    """Add an adapter from a folder on the gateway's machine."""
    body = {"name": name, "model": model, "path": path, "activate": activate}
    _print_added(client.change("importAdapter", client.tenant_path(tenant), body), as_json=as_json)


@managed
def cancel(
    client: "AdminClient",
    upload_id: Annotated[str, typer.Argument(metavar="ID", help="The upload.")],
    tenant: TenantOption,
) -> None:
    """Give up an upload."""
    client.change("deleteAdapterUpload", {**client.tenant_path(tenant), "upload_id": upload_id})
    typer.echo(f"gave up the upload {upload_id}")


@managed
def list_all(client: "AdminClient", tenant: TenantFilter = None, as_json: AsJson = False) -> None:
    """List adapters by tenant and name."""
    columns = (
        ("TENANT", "tenant"),
        ("NAME", "name"),
        ("MODEL", "model"),
        ("VERSIONS", _versions),
        ("BYTES", lambda adapter: sum(each["bytes"] for each in adapter["versions"])),
        ("PRICE", lambda adapter: f"x{adapter['price_multiplier']}"),
        ("ID", "id"),
    )
    empty = "no adapters yet: turnpike adapter upload FOLDER --tenant NAME --name NAME"
    items = client.items("listAdapters", query=client.tenant_query(tenant))
    print_list(items, columns, as_json=as_json, empty=empty)


@managed
def show(client: "AdminClient", name: Name, tenant: TenantOption) -> None:
    """Show an adapter with its versions as JSON."""
    print_json(client.read("readAdapter", _path(client, tenant, name)))


@managed
def set_weights(
    client: "AdminClient",
    name: Name,
    tenant: TenantOption,
    weights: Annotated[list[str], typer.Argument(metavar="VERSION=WEIGHT...", help="As in 1=90 2=10.")],
) -> None:
    """Share the requests among versions. Those that are not named get none."""
    stated = [_weight(each) for each in weights]
    _print_weights(client.change("replaceAdapterWeights", _path(client, tenant, name), {"weights": stated}))


@managed
def rollback(client: "AdminClient", name: Name, tenant: TenantOption) -> None:
    """Return to the weights before the last change. A second rollback undoes the first."""
    _print_weights(client.change("rollbackAdapter", _path(client, tenant, name)))


@managed
def set_price(
    client: "AdminClient",
    name: Name,
    tenant: TenantOption,
    multiplier: Annotated[
        str, typer.Option("--multiplier", metavar="N", help="Multiplier of the base model's price, from 0 to 1000.")
    ],
) -> None:
    """Set the multiplier of the base model's price. A price of the adapter's id has priority: turnpike price set ID."""
    path = _path(client, tenant, name)
    adapter = client.change("setAdapterPriceMultiplier", path, {"multiplier": multiplier})
    typer.echo(f"{name} costs {adapter['price_multiplier']} times the price of {adapter['model']}")


@managed
def delete(
    client: "AdminClient",
    name: Name,
    tenant: TenantOption,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", help="Only this version, which must get no requests.")
    ] = None,
) -> None:
    """Delete an adapter, or one version of it. Running gateways refuse its name within 5 seconds."""
    path = _path(client, tenant, name)
    if version is None:
        client.change("deleteAdapter", path)
        typer.echo(f"deleted {name}")
    else:
        client.change("deleteAdapterVersion", {**path, "adapter_version": str(version)})
        typer.echo(f"deleted version {version} of {name}")


def _path(client: "AdminClient", tenant: str, name: str) -> Mapping[str, str]:
    return {**client.tenant_path(tenant), "adapter_name": name.removeprefix(f"{tenant}/")}


def _stated(folder: Path) -> list[dict[str, Any]]:
    """Size and digest of each file.

    Raises:
        OperatorError: a file cannot be read.
    """
    stated = []
    for name in FILES:
        try:
            with (folder / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                stated.append({"name": name, "bytes": file.tell(), "sha256": digest})
        except OSError as error:
            raise OperatorError(f"{folder / name} cannot be read: {(error.strerror or 'error').lower()}") from None
    return stated


def _send(client: "AdminClient", path: Mapping[str, str], file: Path, stated: Mapping[str, Any]) -> None:
    """Send what the gateway does not have yet, in parts."""
    try:
        with file.open("rb") as reader:
            sent = reader.seek(stated["received_bytes"])
            while part := reader.read(PART_BYTES):
                query = {"offset": str(sent)}
                client.store("storeAdapterFile", part, {**path, "adapter_file": stated["name"]}, query)
                sent += len(part)
    except OSError as error:
        raise OperatorError(f"{file} cannot be read: {(error.strerror or 'error').lower()}") from None


def _weight(option: str) -> dict[str, int]:
    """
    Raises:
        typer.BadParameter: it is not VERSION=WEIGHT.
    """
    version, equals, weight = option.partition("=")
    if not (equals and version.isdecimal() and weight.isdecimal()):
        raise typer.BadParameter(f"{option!r} is not VERSION=WEIGHT, as in 1=90")
    return {"version": int(version), "weight": int(weight)}


def _print_added(adapter: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(adapter)
        return
    version = adapter["versions"][-1]
    typer.echo(
        f"{adapter['tenant']} has {adapter['name']} version {version['version']}: an adapter of {adapter['model']}, "
        f"rank {version['rank']}, {version['parameters']} parameters, {version['bytes']} bytes ({adapter['id']})"
    )
    _print_weights(adapter)


def _print_weights(adapter: Mapping[str, Any]) -> None:
    typer.echo(f"requests for {adapter['name']}: {_versions(adapter)}")


def _versions(adapter: Mapping[str, Any]) -> str:
    total = sum(each["weight"] for each in adapter["versions"]) or 1
    return ", ".join(f"v{each['version']} {100 * each['weight'] / total:.4g} %" for each in adapter["versions"])
