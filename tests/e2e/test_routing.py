"""Routing in the running program: two small models, its own commands, the official client."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from gateway.metering.event import UsageEvent
from gateway.metering.journal.journal_file import JournalFile
from tests.support.program import Program, running
from tests.support.tiny_models import make_checkpoint

QUESTION = [{"role": "user", "content": "Tell me a story."}]
SETTINGS = """
kv_cache_bytes = "16MiB"
dtype = "float32"
[models]
big = "{big}"
small = "{small}"
[small_models]
big = "small"
[model_versions]
assistant = {{ big = 0, small = 1 }}
[prices]
big = ["1", "4"]
small = ["0.1", "0.4"]
"""
FOLLOWED_S = 15


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    root = tmp_path_factory.mktemp("routing")
    big, small = [make_checkpoint(root / name, "qwen3", seed=seed) for seed, name in enumerate(("big", "small"))]
    data_dir = root / "data"
    data_dir.mkdir()
    (data_dir / "turnpike.toml").write_text(SETTINGS.format(big=big, small=small), encoding="utf-8")
    with running(data_dir) as program:
        yield program


class Tenant:
    """A new tenant of the running program, and its client."""

    def __init__(self, program: Program, name: str) -> None:
        self._program = program
        self.name = name
        program.command("tenant", "create", name, "--tier", "standard")
        self.client = openai.AsyncOpenAI(
            base_url=f"{program.url}/v1", api_key=program.command("key", "create", "--tenant", name), max_retries=0
        )

    async def __aenter__(self) -> "Tenant":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def ask(self, model: str, **fields: Any) -> tuple[str, str]:
        """Who answered, and why. The answer and its headers agree."""
        raw = await self.client.chat.completions.with_raw_response.create(
            model=model, messages=QUESTION, max_tokens=8, temperature=0, **fields
        )
        assert raw.headers["x-turnpike-requested-model"] == model
        served = raw.headers["x-turnpike-served-model"]
        assert raw.parse().model == served
        return served, raw.headers["x-turnpike-route-reason"]

    async def follows(self, model: str, expected: tuple[str, str]) -> None:
        """Wait until the gateway applies the change that a command made."""
        async with asyncio.timeout(FOLLOWED_S):
            while (await self.ask(model)) != expected:
                await asyncio.sleep(0.2)

    def last_event(self) -> UsageEvent:
        file = JournalFile(self._program.data_dir / "usage" / "journal.db", read_only=True)
        try:
            return [UsageEvent.from_json(row.body) for row in file.events_after(0, 10_000)][-1]
        finally:
            file.close()


async def test_auto_is_listed_and_answered_by_one_of_the_pair(program: Program) -> None:
    async with Tenant(program, "plain") as tenant:
        listed = {model.id async for model in tenant.client.models.list()}
        assert listed == {"big", "small", "assistant", "auto"}
        served, reason = await tenant.ask("auto")
        assert (served, reason) in {("big", "complexity_large"), ("small", "complexity_small")}
        event = tenant.last_event()
        assert (event.requested_model, event.served_model, event.route_reason) == ("auto", served, reason)
        assert event.price_version.startswith(f"{served}@")
        assert await tenant.ask("big") == ("big", "explicit")
        assert await tenant.ask("assistant") == ("small", "version")
        with pytest.raises(openai.NotFoundError):
            await tenant.ask("auto:small")


async def test_a_cascade_and_an_alias_from_the_command_line(program: Program) -> None:
    async with Tenant(program, "careful") as tenant:
        program.command("route", "set", "--tenant", "careful", "--cascade", "99", "--alias", "gpt-4o=auto")
        await tenant.follows("gpt-4o", ("big", "cascade_escalated"))
        event = tenant.last_event()
        assert (event.served_model, event.completion_tokens, event.undelivered_tokens) == ("big", 8, 8)
        assert event.engine_ns > 0
        chunks = [
            chunk
            async for chunk in await tenant.client.chat.completions.create(
                model="auto", messages=QUESTION, max_tokens=8, temperature=0, stream=True
            )
        ]
        assert {chunk.model for chunk in chunks} == {"big"}
        assert program.metric("turnpike_routed_requests_total") > 0


async def test_a_budget_that_is_too_small_for_the_large_model(program: Program) -> None:
    async with Tenant(program, "thrifty") as tenant:
        await tenant.follows("big", ("big", "explicit"))
        program.command("route", "set", "--tenant", "thrifty", "--near-budget")
        program.command("limit", "set", "--tenant", "thrifty", "--model", "big", "--dollars-per-month", "0")
        await tenant.follows("big", ("small", "budget"))
        assert tenant.last_event().price_version.startswith("small@")
        program.command("route", "set", "--tenant", "thrifty", "--no-near-budget")
        with pytest.raises(openai.RateLimitError) as refused:
            await tenant.follows("big", ("nobody", ""))
        assert refused.value.code == "insufficient_quota"
