"""Limits and tiers of the running program, through its own commands and the official client."""

import asyncio

import openai
import pytest

from tests.support.program import Program

QUESTION = [{"role": "user", "content": "Tell me a story."}]


def tenant(program: Program, name: str, tier: str, *limits: str) -> openai.AsyncOpenAI:
    """A client of a new tenant with limits."""
    program.command("tenant", "create", name, "--tier", tier)
    if limits:
        program.command("limit", "set", "--tenant", name, *limits)
    key = program.command("key", "create", "--tenant", name)
    return openai.AsyncOpenAI(base_url=f"{program.url}/v1", api_key=key, max_retries=0)


async def test_answers_end_where_the_tokens_do_and_then_come_refusals(program: Program) -> None:
    async with tenant(program, "metered", "standard", "--tokens-per-minute", "60") as client:
        answer = await client.chat.completions.create(model="tiny", messages=QUESTION, extra_body={"ignore_eos": True})
        assert (answer.usage.total_tokens, answer.choices[0].finish_reason) == (60, "length")
        assert answer.usage.model_extra == {"limited_by": {"scope": "tenant", "limit": "tokens_per_minute"}}
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model="tiny", messages=QUESTION)
        assert refused.value.code == "rate_limit_exceeded"
        assert int(refused.value.response.headers["retry-after"]) > 0


async def test_many_at_once_stay_within_a_days_tokens(program: Program) -> None:
    budget = 1000
    async with tenant(program, "daily", "standard", "--tokens-per-day", str(budget)) as client:

        async def ask() -> int:
            try:
                answer = await client.chat.completions.create(
                    model="tiny", messages=QUESTION, max_tokens=16, extra_body={"ignore_eos": True}
                )
            except openai.RateLimitError:
                return 0
            return answer.usage.total_tokens

        used = sum(await asyncio.gather(*(ask() for _ in range(60))))
    assert 0.98 * budget <= used <= budget


async def test_premium_is_served_while_standard_floods(program: Program) -> None:
    async with tenant(program, "flooder", "standard") as flooder, tenant(program, "gold", "premium") as gold:

        async def flood() -> None:
            await flooder.chat.completions.create(
                model="tiny", messages=QUESTION, max_tokens=300, extra_body={"ignore_eos": True}
            )

        running = [asyncio.create_task(flood()) for _ in range(150)]
        await asyncio.sleep(0.5)
        answer = await gold.chat.completions.create(
            model="tiny", messages=QUESTION, max_tokens=4, service_tier="priority", extra_body={"ignore_eos": True}
        )
        unfinished = sum(not task.done() for task in running)
        results = await asyncio.gather(*running, return_exceptions=True)
    assert answer.service_tier == "priority"
    assert unfinished > 75, "premium waited for the flood"
    assert all(result is None or isinstance(result, openai.RateLimitError) for result in results)
    program.wait_idle()
