"""Uploads of adapters: begun with the size and the digest of both files, filled in parts that can be resumed, checked
and completed; or copied at once from a folder of this machine."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from engine.adapters.source import AdapterFacts
from gateway.adapters.changes import UPLOAD_LIFE, AdapterChanges, new_upload_id
from gateway.adapters.errors import AdapterConflict, InvalidAdapter, UnknownAdapterUpload
from gateway.adapters.files import CONFIG_FILE, FILES, MAX_CONFIG_BYTES
from gateway.adapters.hosting import AdapterHosting
from gateway.adapters.limits import require_room
from gateway.adapters.names import parse_name, qualified_name
from gateway.adapters.queries import find_adapter, kept_digests, open_upload_ids, upload_of
from gateway.adapters.records import Adapter, AdapterUpload
from gateway.http.errors import APIError, invalid
from gateway.management.operations.adapter_wire import (
    ADAPTER,
    DELETED,
    FILE,
    RECEIVED,
    SHA256,
    STATED_NAME,
    UPLOAD,
    adapter_wire,
    upload_wire,
)
from gateway.management.operations.change import SETTINGS, Change, Changes
from gateway.management.operations.context import AdminContext
from gateway.management.operations.roles import ADMINS, READERS
from gateway.management.operations.routes import Octets, OperationInput, Routes
from gateway.management.operations.schema import MAX_INTEGER, Boolean, Integer, ListOf, Member, Record, Text, optional
from gateway.management.operations.wire import MODEL_NAME
from gateway.tenancy.database import writing
from gateway.tenancy.queries import tenant_of
from gateway.tenancy.records import Tenant

MAX_PART_BYTES = 8 * 1024**2
_UPLOADS = "/tenants/{tenant_id}/adapter-uploads"
_ONE = f"{_UPLOADS}/{{upload_id}}"

ROUTES = Routes()


@dataclass(frozen=True, slots=True)
class NewFile:
    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class NewUpload:
    name: str
    model: str | None
    files: list[NewFile]
    activate: bool | None


@dataclass(frozen=True, slots=True)
class NewImport:
    name: str
    model: str | None
    path: str
    activate: bool | None


@dataclass(frozen=True, slots=True)
class _Examined:
    """Files that were checked, in the folder of an upload."""

    upload: AdapterUpload
    facts: AdapterFacts


_NEW_FILE = Record(
    "NewAdapterFile",
    NewFile,
    {"name": Member(FILE), "bytes": Member(Integer(1)), "sha256": Member(SHA256, "In hexadecimal.")},
)
_NAME_MEMBERS = {
    "name": Member(STATED_NAME, "With or without the tenant's name before it. An existing one gets a further version."),
    "model": optional(MODEL_NAME, "The base model. Default: the adapter's, or the only one that takes adapters."),
}
_ACTIVATE = optional(Boolean(), "Whether the version gets all requests at once. Default: true.")


@ROUTES.write(
    "POST",
    _UPLOADS,
    ADMINS,
    UPLOAD,
    body=Record(
        "NewAdapterUpload",
        NewUpload,
        {**_NAME_MEMBERS, "files": Member(ListOf(_NEW_FILE, len(FILES), len(FILES))), "activate": _ACTIVATE},
    ),
    status=201,
)
async def create_adapter_upload(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Begin the upload of an adapter in PEFT's format, with the size and the digest of each file. It expires after 24
    hours."""
    body: NewUpload = call.body
    hosting = _hosting(context)
    sizes, sha256 = _stated(body.files, hosting)
    tenant = await context.tenants(change).tenant(call.path["tenant_id"])
    name, model = await _named(change, hosting, tenant, body.name, body.model)
    await _require_room(change, hosting, tenant, name, sum(sizes.values()))
    upload = AdapterUpload(
        new_upload_id(),
        tenant.id,
        name,
        model,
        sizes,
        sha256,
        body.activate is not False,
        change.at,
        change.at + UPLOAD_LIFE,
    )
    await AdapterChanges(change.connection, change.at).open_upload(upload)
    await sweep(change, hosting)
    return change.record("create", "adapter_upload", upload.id, tenant_id=tenant.id, after=upload_wire(upload, {}))


@ROUTES.get(_ONE, READERS, UPLOAD)
async def read_adapter_upload(context: AdminContext, call: OperationInput) -> Any:
    """Read an upload, with the bytes that were received: where to resume."""
    hosting = _hosting(context)
    upload = await _read(context, call)
    return upload_wire(upload, await asyncio.to_thread(hosting.files.received, upload.id))


@ROUTES.store(
    f"{_ONE}/files/{{adapter_file}}",
    ADMINS,
    RECEIVED,
    Octets(MAX_PART_BYTES),
    query={"offset": Member(Integer(0, MAX_INTEGER), "Bytes of the file that were received: where this part begins.")},
)
async def store_adapter_file(context: AdminContext, call: OperationInput) -> Any:
    """Append a part of at most 8 MiB to a file of an upload."""
    hosting = _hosting(context)
    upload = await _read(context, call)
    name = call.path["adapter_file"]
    part = (upload.id, name, call.query["offset"], upload.sizes[name], call.body)
    return {"received_bytes": await asyncio.to_thread(hosting.files.append, *part)}


async def _examine(context: AdminContext, call: OperationInput) -> _Examined | None:
    """Check the files of an upload against their digests and their base model. None: there is no such upload; a
    repetition of its completion is answered as the first."""
    hosting = _hosting(context)
    try:
        upload = await _read(context, call)
    except UnknownAdapterUpload:
        return None
    folder = await asyncio.to_thread(hosting.files.seal, upload.id, upload.sizes, upload.sha256)
    return _Examined(upload, await hosting.examine(folder, upload.model))


@ROUTES.write("POST", f"{_ONE}/complete", ADMINS, ADAPTER, prepare=_examine)
async def complete_adapter_upload(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Complete an upload: check its files against their digests and the base model, and add the version. Gateways serve
    it within 5 seconds."""
    tenant = await context.tenants(change).tenant(call.path["tenant_id"])
    upload = await upload_of(change.connection, tenant.id, call.path["upload_id"], change.at)
    examined: _Examined | None = call.prepared
    if examined is None:
        raise UnknownAdapterUpload("the tenant has no such upload")
    await AdapterChanges(change.connection, change.at).close_upload(upload.id)
    return await _add_version(context, change, tenant, examined)


@ROUTES.write("DELETE", _ONE, ADMINS, DELETED)
async def delete_adapter_upload(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Give up an upload, and remove its files."""
    hosting = _hosting(context)
    tenant = await context.tenants(change).tenant(call.path["tenant_id"])
    upload = await upload_of(change.connection, tenant.id, call.path["upload_id"], change.at)
    await AdapterChanges(change.connection, change.at).close_upload(upload.id)
    await asyncio.to_thread(hosting.files.discard, upload.id)
    after = {"id": None, "name": upload.name}
    before = upload_wire(upload, {})
    return change.record("delete", "adapter_upload", upload.id, tenant_id=tenant.id, before=before, after=after)


async def _copy(context: AdminContext, call: OperationInput) -> _Examined:
    """Copy the files of a folder of this machine, and check them."""
    hosting, body = _hosting(context), call.body
    folder = await asyncio.to_thread(hosting.resolve, body.path)
    async with context.reading() as connection:
        tenant = await tenant_of(connection, call.path["tenant_id"])
        name = parse_name(body.name, tenant.name)
        existing = await find_adapter(connection, tenant.id, name)
    model = hosting.base_model(body.model or (existing.model if existing else None))
    now = context.now()
    upload = AdapterUpload(
        new_upload_id(), tenant.id, name, model, {}, {}, body.activate is not False, now, now + UPLOAD_LIFE
    )
    await _keep_from_sweeps(context, upload)
    copied = await asyncio.to_thread(hosting.files.copy, upload.id, folder, hosting.max_bytes)
    return _Examined(upload, await hosting.examine(copied, model))


@ROUTES.write(
    "POST",
    "/tenants/{tenant_id}/adapter-imports",
    ADMINS,
    ADAPTER,
    body=Record(
        "NewAdapterImport",
        NewImport,
        {
            **_NAME_MEMBERS,
            "path": Member(Text(1024), "A folder below one of the `roots` of the settings, relative or absolute."),
            "activate": _ACTIVATE,
        },
    ),
    status=201,
    prepare=_copy,
)
async def import_adapter(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Add an adapter from a folder on the gateway's machine, below one of the roots of the settings."""
    examined: _Examined = call.prepared
    hosting = _hosting(context)
    tenant = await context.tenants(change).tenant(call.path["tenant_id"])
    await AdapterChanges(change.connection, change.at).close_upload(examined.upload.id)
    await _named(change, hosting, tenant, call.body.name, examined.upload.model)
    return await _add_version(context, change, tenant, examined)


async def sweep(change: Change, hosting: AdapterHosting) -> int:
    """Remove files that no row names: of ended processes, expired uploads and deleted adapters. Returns the number of
    folders removed."""
    digests = await kept_digests(change.connection, change.at)
    upload_ids = await open_upload_ids(change.connection, change.at)
    return await asyncio.to_thread(hosting.files.sweep, digests, upload_ids)


async def sweep_at_start(changes: Changes, hosting: AdapterHosting) -> int:
    """As `sweep`, in a change of its own.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    async with changes.change(SETTINGS, "") as change:
        return await sweep(change, hosting)


def _hosting(context: AdminContext) -> AdapterHosting:
    if context.adapters is None:
        raise APIError(404, "This gateway takes no adapters.", code="adapter_not_found")
    return context.adapters


def _stated(files: list[NewFile], hosting: AdapterHosting) -> tuple[Mapping[str, int], Mapping[str, str]]:
    """The size and the digest of each file.

    Raises:
        APIError: 400 naming the member.
    """
    by_name = {file.name: file for file in files}
    if len(by_name) < len(FILES):
        raise invalid("files", f"files must name {' and '.join(FILES)}, each once.")
    if by_name[CONFIG_FILE].bytes > MAX_CONFIG_BYTES:
        raise invalid("files", f"{CONFIG_FILE} has at most {MAX_CONFIG_BYTES} bytes.")
    total = sum(file.bytes for file in files)
    if total > hosting.max_bytes:
        raise invalid("files", f"The files have {total} bytes, the limit is {hosting.max_bytes}.")
    return {name: file.bytes for name, file in by_name.items()}, {name: file.sha256 for name, file in by_name.items()}


async def _read(context: AdminContext, call: OperationInput) -> AdapterUpload:
    async with context.reading() as connection:
        tenant = await tenant_of(connection, call.path["tenant_id"])
        return await upload_of(connection, tenant.id, call.path["upload_id"], context.now())


async def _named(
    change: Change, hosting: AdapterHosting, tenant: Tenant, stated_name: str, stated_model: str | None
) -> tuple[str, str]:
    """The adapter's name without prefix, and its base model.

    Raises:
        InvalidAdapter: the name is that of a served model, or the base model takes no adapters.
        AdapterConflict: the adapter has another base model.
    """
    name = parse_name(stated_name, tenant.name)
    existing = await find_adapter(change.connection, tenant.id, name)
    model = hosting.base_model(stated_model or (existing.model if existing else None))
    if existing is not None and existing.model != model:
        raise AdapterConflict(f"{name} is an adapter of {existing.model}", "model")
    if hosting.is_taken(name) or hosting.is_taken(qualified_name(name, tenant.name)):
        raise InvalidAdapter(f"the name {name} is that of a served model", "name")
    return name, model


async def _require_room(
    change: Change, hosting: AdapterHosting, tenant: Tenant, name: str, more_bytes: int
) -> Adapter | None:
    """The tenant's adapter of that name, if there is one.

    Raises:
        AdapterLimitExceeded: the tenant may not have this version.
    """
    await AdapterChanges(change.connection, change.at).expire_uploads()
    existing = await find_adapter(change.connection, tenant.id, name)
    is_new = existing is None
    await require_room(change.connection, tenant.id, hosting.limits, is_new=is_new, more_bytes=more_bytes)
    return existing


async def _add_version(context: AdminContext, change: Change, tenant: Tenant, examined: _Examined) -> dict[str, Any]:
    """Add the version and rename its files into place: the last step before the commit."""
    hosting, upload, facts = _hosting(context), examined.upload, examined.facts
    changes = AdapterChanges(change.connection, change.at)
    existing = await _require_room(change, hosting, tenant, upload.name, facts.bytes)
    if existing is not None and existing.model != upload.model:
        raise AdapterConflict(f"{upload.name} is an adapter of {existing.model}", "model")
    adapter = existing or await changes.create(tenant.id, upload.name, upload.model)
    added = await changes.add_version(adapter, facts, activate=upload.activate)
    after = adapter_wire(added, tenant.name)
    before = None if existing is None else adapter_wire(existing, tenant.name)
    change.record("upload", "adapter", added.id, tenant_id=tenant.id, before=before, after=after)
    await asyncio.to_thread(hosting.files.publish, upload.id, facts.digest)
    return after


async def _keep_from_sweeps(context: AdminContext, upload: AdapterUpload) -> None:
    """Insert the row of an import, so that a sweep leaves its files."""
    brief = replace(upload, expires_at=upload.created_at + timedelta(hours=1))
    async with writing(context.database) as connection:
        await AdapterChanges(connection, upload.created_at).open_upload(brief)
