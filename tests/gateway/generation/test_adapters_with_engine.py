"""An adapter from its upload to its bill, over the real engine, the engine's own check, and real stores."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import torch
from safetensors.torch import save

from engine.completion import collect
from engine.request import SamplingParams
from gateway.adapters.files import CONFIG_FILE, WEIGHTS_FILE
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.generation.services import Services
from gateway.http.errors import APIError
from gateway.management.operations.local import LocalOperations
from gateway.process.opening import open_services
from gateway.tenancy import open_database
from tests.support.adapters import stated
from tests.support.tenants import PEPPER
from tests.support.tiny_app import tiny_engine
from tests.support.tiny_models import make_checkpoint
from tests.support.usage_events import events_of
from tests.support.writers import TenantWriter

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "temperature": 0, "logprobs": True}


@dataclass
class Whole:
    http: httpx.AsyncClient
    operations: LocalOperations
    tenant: dict[str, str]
    keys: dict[str, str]
    services: Services
    checkpoint: Path

    async def ask(self, model: str, tenant: str = "acme", **members: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        return await self.http.post("/v1/chat/completions", json=BODY | {"model": model} | members, headers=headers)

    async def upload(self, name: str, files: dict[str, bytes], **members: Any) -> Any:
        body = {"name": name, "files": stated(files), **members}
        begun = await self.operations.change("createAdapterUpload", self.tenant, body)
        path = {**self.tenant, "upload_id": begun["id"]}
        for file, content in files.items():
            await self.operations.store("storeAdapterFile", content, {**path, "adapter_file": file}, {"offset": "0"})
        return await self.operations.change("completeAdapterUpload", path)


@pytest.fixture
async def whole(sqlite_schema: Path, tmp_path: Path, anyio_backend: str) -> AsyncIterator[Whole]:
    shutil.copyfile(sqlite_schema, tmp_path / "turnpike.db")
    checkpoint = make_checkpoint(tmp_path / "model", "llama")
    settings = Settings(
        data_dir=tmp_path,
        database_url=f"sqlite:///{tmp_path / 'turnpike.db'}",
        prices={"tiny": ("0.1", "0.05", "0.4")},
        journal_min_free=0,
    )
    database = open_database(settings.database_url.get_secret_value())
    tenants = TenantWriter(database, PEPPER)
    acme, _ = [await tenants.create_tenant(name, "standard") for name in ("acme", "globex")]
    keys = {name: (await tenants.create_key(name)).plaintext for name in ("acme", "globex")}
    services, admin = await open_services(settings, tiny_engine(checkpoint), database, PEPPER)
    app = create_app(settings, services, admin)
    transport = httpx.ASGITransport(app)
    operations = LocalOperations(admin.context, admin.operations)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://turnpike") as http,
    ):
        yield Whole(http, operations, {"tenant_id": acme.id}, keys, services, checkpoint)
    await database.dispose()


def peft_files(checkpoint: Path, rank: int = 4, *, seed: int = 0, scale: float = 1.0) -> dict[str, bytes]:
    """An adapter of all query projections."""
    config = json.loads((checkpoint / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    outputs = heads * config.get("head_dim", hidden // heads)
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        module = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{module}.lora_A.weight"] = scale * torch.randn(rank, hidden)
        tensors[f"{module}.lora_B.weight"] = scale * torch.randn(outputs, rank)
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj"], "bias": "none"}
    return {CONFIG_FILE: json.dumps(stated).encode(), WEIGHTS_FILE: save(tensors)}


def logprobs(answer: httpx.Response) -> list[float]:
    assert answer.status_code == 200, answer.text
    return [each["logprob"] for each in answer.json()["choices"][0]["logprobs"]["content"]]


async def served(whole: Whole, name: str, status: int) -> httpx.Response:
    async with asyncio.timeout(20):
        while (answer := await whole.ask(name)).status_code != status:
            await asyncio.sleep(0.1)
    return answer


async def test_from_upload_to_bill(whole: Whole) -> None:
    plain = logprobs(await whole.ask("tiny"))
    adapter = await whole.upload("support", peft_files(whole.checkpoint))
    [version] = adapter["versions"]
    assert (adapter["model"], version["rank"]) == ("tiny", 4)
    assert any("q_proj" in target for target in version["targets"])
    changed = await served(whole, "support", 200)
    assert changed.json()["model"] == "support"
    assert logprobs(changed) != plain
    assert logprobs(await whole.ask("acme/support")) == logprobs(changed)
    assert logprobs(await whole.ask("tiny")) == plain
    assert (await whole.ask("support", "globex")).status_code == 404
    events = events_of(whole.services.journal)
    assert [event.adapter_id for event in events] == ["", adapter["id"], adapter["id"], ""]
    assert {event.served_model for event in events} == {"tiny"}
    await whole.operations.change("deleteAdapter", {**whole.tenant, "adapter_name": "support"})
    await served(whole, "support", 404)


async def reference(whole: Whole, model: str, messages: list[dict[str, str]]) -> str:
    """The engine's own text, for a tenant of which nothing is cached."""
    adapters, engine = whole.services.adapters, whole.services.engine
    found = [each for each in adapters.of_tenant(whole.tenant["tenant_id"]) if each.name == model]
    [number] = found[0].serving if found else [0]
    version = found[0].version(number) if found else None
    prompt = engine.models["tiny"].text.encode_chat(messages)
    params = SamplingParams(temperature=0, max_tokens=BODY["max_tokens"])
    source = None if version is None else adapters.source(version)
    [answer] = await collect(engine.stream("tiny", prompt, params, tenant=uuid4().hex, adapter=source), 1)  # type: ignore[attr-defined]
    return answer.text


async def test_a_session_is_answered_as_its_whole_conversation_is(whole: Whole) -> None:
    """Its turns may have different adapters: none reads what another, another version or the base has computed."""
    for seed, name in enumerate(("first", "second")):
        await whole.upload(name, peft_files(whole.checkpoint, seed=seed))
        await served(whole, name, 200)
    history: list[dict[str, str]] = []

    async def turn(model: str, words: str) -> None:
        message = {"role": "user", "content": words}
        answer = await whole.ask(model, messages=[message], session_id="s")
        assert answer.status_code == 200, answer.text
        text = answer.json()["choices"][0]["message"]["content"]
        history.append(message)
        assert text == await reference(whole, model, history)
        history.append({"role": "assistant", "content": text})

    for position, model in enumerate(("first", "first", "tiny", "second", "first", "tiny")):
        await turn(model, f"turn {position} of a conversation that takes some blocks")
    label = (await whole.ask("first")).headers["x-turnpike-adapter"]
    await whole.upload("first", peft_files(whole.checkpoint, seed=5), activate=True)
    async with asyncio.timeout(20):
        while (await whole.ask("first")).headers["x-turnpike-adapter"] == label:
            await asyncio.sleep(0.1)
    await turn("first", "by another version")


async def test_what_the_engine_refuses(whole: Whole) -> None:
    files = peft_files(whole.checkpoint)
    config = json.loads(files[CONFIG_FILE])
    for wrong in (
        {CONFIG_FILE: json.dumps(config | {"use_dora": True}).encode()},
        {CONFIG_FILE: json.dumps(config | {"r": 10**9}).encode()},
        {CONFIG_FILE: b"[" * 100_000},
        {WEIGHTS_FILE: b"\xff" * 8 + files[WEIGHTS_FILE][8:]},
        {WEIGHTS_FILE: peft_files(whole.checkpoint, scale=float("nan"))[WEIGHTS_FILE]},
    ):
        with pytest.raises(APIError) as refused:
            await whole.upload("wrong", files | wrong)
        assert (refused.value.status, refused.value.code) == (400, "unsupported_adapter"), refused.value
    assert (await whole.operations.read("listAdapters"))["data"] == []
