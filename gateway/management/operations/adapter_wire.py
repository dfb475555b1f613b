"""Adapters and their uploads as JSON, and the declarations of it."""

from collections.abc import Mapping
from typing import Any

from gateway.adapters.changes import MAX_WEIGHT
from gateway.adapters.files import FILES
from gateway.adapters.names import MAX_NAME_CHARS
from gateway.adapters.records import Adapter, AdapterUpload
from gateway.management.operations.routes import PATH_KINDS
from gateway.management.operations.schema import (
    Boolean,
    Choice,
    Instant,
    Integer,
    ListOf,
    Member,
    Text,
    answer,
    nullable,
)
from gateway.management.operations.timestamps import instant
from gateway.management.operations.wire import MODEL_NAME, TENANT_ID, TENANT_NAME

MAX_VERSIONS = 1000
_MAX_TARGETS = 1000

ADAPTER_ID = Text(96)
ADAPTER_NAME = PATH_KINDS["adapter_name"]
STATED_NAME = Text(64 + 1 + MAX_NAME_CHARS, pattern="([A-Za-z0-9][A-Za-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*")
VERSION = Integer(1, 999_999_999)
WEIGHT = Integer(0, MAX_WEIGHT)
SHA256 = Text(64, 64, pattern="[0-9a-f]{64}")
FILE = Choice(FILES)
MULTIPLIER = Text(11, pattern=r"[0-9]{1,4}(\.[0-9]{1,6})?")

_VERSION = answer(
    "AdapterVersion",
    {
        "version": VERSION,
        "weight": Member(WEIGHT, "Share of the requests, relative to the other versions'."),
        "digest": Member(SHA256, "Of the files."),
        "rank": Integer(1),
        "targets": Member(ListOf(Text(255), _MAX_TARGETS), "Names of the modules that it changes."),
        "parameters": Integer(0),
        "bytes": Integer(0),
        "created_at": Instant(),
    },
)
ADAPTER = answer(
    "Adapter",
    {
        "id": Member(ADAPTER_ID, "Stable; usage, prices and invoices name it."),
        "tenant": TENANT_NAME,
        "tenant_id": TENANT_ID,
        "name": Member(ADAPTER_NAME, "What requests of the tenant state as `model`, also after `TENANT/`."),
        "model": Member(MODEL_NAME, "The base model."),
        "price_multiplier": Member(MULTIPLIER, "Of the base model's price, unless the adapter's id has a price."),
        "versions": ListOf(_VERSION, MAX_VERSIONS),
        "can_roll_back": Member(Boolean(), "Whether there are earlier weights to return to."),
        "created_at": Instant(),
    },
)
_PART = answer("AdapterFile", {"name": FILE, "bytes": Integer(1), "sha256": SHA256, "received_bytes": Integer(0)})
UPLOAD = answer(
    "AdapterUpload",
    {
        "id": PATH_KINDS["upload_id"],
        "tenant_id": TENANT_ID,
        "name": ADAPTER_NAME,
        "model": MODEL_NAME,
        "files": ListOf(_PART, len(FILES)),
        "activate": Boolean(),
        "created_at": Instant(),
        "expires_at": Instant(),
    },
)
RECEIVED = answer("ReceivedBytes", {"received_bytes": Integer(0)})
DELETED = answer("DeletedAdapter", {"id": nullable(ADAPTER_ID), "name": ADAPTER_NAME})


def adapter_wire(adapter: Adapter, tenant_name: str) -> dict[str, Any]:
    versions = [
        {
            "version": version.number,
            "weight": adapter.weights.get(version.number, 0),
            "digest": version.digest,
            "rank": version.rank,
            "targets": list(version.targets),
            "parameters": version.parameters,
            "bytes": version.bytes,
            "created_at": instant(version.created_at),
        }
        for version in adapter.versions
    ]
    return {
        "id": adapter.id,
        "tenant": tenant_name,
        "tenant_id": adapter.tenant_id,
        "name": adapter.name,
        "model": adapter.model,
        "price_multiplier": f"{adapter.price_multiplier:f}",
        "versions": versions,
        "can_roll_back": adapter.previous is not None,
        "created_at": instant(adapter.created_at),
    }


def upload_wire(upload: AdapterUpload, received: Mapping[str, int]) -> dict[str, Any]:
    return {
        "id": upload.id,
        "tenant_id": upload.tenant_id,
        "name": upload.name,
        "model": upload.model,
        "files": [
            {
                "name": name,
                "bytes": upload.sizes[name],
                "sha256": upload.sha256[name],
                "received_bytes": received.get(name, 0),
            }
            for name in FILES
        ],
        "activate": upload.activate,
        "created_at": instant(upload.created_at),
        "expires_at": instant(upload.expires_at),
    }
