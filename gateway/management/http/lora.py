"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's format, for an administrator's key.

vLLM takes any path from anyone. Here a path must be below one of the `roots` of the settings, and a name is
`TENANT/NAME`, as an administrator's key belongs to no tenant. Both are operations of the admin API in another form.
"""

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.http.errors import APIError, invalid
from gateway.http.fields import Fields
from gateway.http.json_body import read_json
from gateway.http.middleware import BodyLimit, presented_key
from gateway.http.request_state import request_state
from gateway.http.responses import send_body
from gateway.management.http.app import MAX_BODY_BYTES, AdminApp
from gateway.management.http.endpoint import MAX_JSON_DEPTH
from gateway.management.operations.roles import Administrator

LOAD_PATH = "/v1/load_lora_adapter"
UNLOAD_PATH = "/v1/unload_lora_adapter"
_MAX_LORA_ID = 2**63 - 1
_MAX_CHARS = 1024
_PARAMS = {"name": "lora_name", "path": "lora_path", "model": "base_model_name", "files": "lora_path"}
"""Fields of vLLM by the field of the operation."""


class LoraAdapters:
    """An ASGI application for both paths."""

    def __init__(self, admin: AdminApp) -> None:
        self._admin = admin
        self._app = BodyLimit(self._serve, MAX_BODY_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        perform = {LOAD_PATH: self._load, UNLOAD_PATH: self._unload}.get(scope["path"])
        administrator = await self._admin.authenticate(presented_key(Headers(scope=scope)))
        state = request_state(scope)
        state.key_id = administrator.key_id
        if perform is None:
            raise APIError(404, "Unknown request URL.", code="not_found")
        if scope["method"] != "POST":
            raise APIError(405, "Method not allowed.", code="method_not_allowed", headers={"allow": "POST"})
        fields = await read_json(scope, receive, MAX_JSON_DEPTH)
        try:
            said = await perform(administrator, state.request_id, fields)
        except APIError as error:
            error.param = _PARAMS.get(error.param or "", error.param)
            raise
        await send_body(send, 200, said.encode(), content_type="text/plain; charset=utf-8")

    async def _load(self, administrator: Administrator, request_id: str, fields: Fields) -> str:
        name = fields.required_string("lora_name", _MAX_CHARS)
        path = fields.required_string("lora_path", _MAX_CHARS)
        base_model = fields.string("base_model_name", _MAX_CHARS)
        in_place = fields.boolean("load_inplace", False)
        fields.finish({})
        tenant_path, own_name = await self._named(administrator, name)
        if not in_place and await self._exists(administrator, tenant_path, own_name):
            raise invalid("lora_name", f"The lora adapter '{name}' has already been loaded.")
        body = {"name": own_name, "path": path, "model": base_model}
        await self._change("importAdapter", administrator, request_id, tenant_path, body)
        return f"Success: LoRA adapter '{name}' added successfully."

    async def _unload(self, administrator: Administrator, request_id: str, fields: Fields) -> str:
        name = fields.required_string("lora_name", _MAX_CHARS)
        fields.integer("lora_int_id", 0, _MAX_LORA_ID)
        fields.finish({})
        tenant_path, own_name = await self._named(administrator, name)
        path = {**tenant_path, "adapter_name": own_name}
        await self._change("deleteAdapter", administrator, request_id, path, {})
        return f"Success: LoRA adapter '{name}' removed successfully."

    async def _named(self, administrator: Administrator, name: str) -> tuple[Mapping[str, str], str]:
        """The path of the tenant's operations, and the adapter's name without prefix.

        Raises:
            APIError: 400, the name has another form; 404, there is no such tenant.
        """
        tenant_name, slash, own_name = name.partition("/")
        if not (slash and tenant_name and own_name):
            raise invalid("lora_name", "lora_name must have the form TENANT/NAME.")
        found = await self._admin.operations.read("listTenants", administrator, query={"name": tenant_name})
        if not found["data"]:
            raise APIError(404, f"There is no tenant named {tenant_name}.", param="lora_name", code="tenant_not_found")
        return {"tenant_id": found["data"][0]["id"]}, own_name

    async def _exists(self, administrator: Administrator, tenant_path: Mapping[str, str], name: str) -> bool:
        try:
            await self._admin.operations.read("readAdapter", administrator, {**tenant_path, "adapter_name": name})
        except APIError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def _change(
        self,
        operation: str,
        administrator: Administrator,
        request_id: str,
        path: Mapping[str, str],
        body: Mapping[str, Any],
    ) -> None:
        present = {name: value for name, value in body.items() if value is not None}
        await self._admin.operations.change(operation, administrator, request_id, path, present)
