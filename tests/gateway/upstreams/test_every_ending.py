"""Random endings: one event, nothing held, no slot lost, and no more billed than was delivered."""

import asyncio
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.metering.event import Ending
from gateway.upstreams.breaker import UpstreamBreaker
from tests.support.fake_upstream import CUT, DONE, Reply, chat_chunk, error_reply, event, usage_chunk
from tests.support.gateway import CHAT, until
from tests.support.upstream_app import BIG
from tests.support.usage_events import cost, events_of

TOKENS = {"prompt_tokens": 7, "completion_tokens": 2}
PARTS = [
    chat_chunk("word"),
    chat_chunk("two words", usage=TOKENS),
    chat_chunk({"reasoning_content": "hm"}),
    chat_chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}),
    chat_chunk({}, "stop"),
    chat_chunk("end", "length"),
    usage_chunk(),
    usage_chunk({"prompt_tokens": 10**6, "completion_tokens": 10**6}),
    event({"error": {"message": "x"}}),
    b": comment\n\n",
    b"data: {\n\n",
    DONE,
    0.002,
    CUT,
]
replies = st.one_of(
    st.lists(st.sampled_from(PARTS), max_size=8).map(Reply),
    st.sampled_from([400, 401, 429, 500, 503]).map(error_reply),
)


def test_every_ending(client, upstream, journal, limiter, big, monkeypatch):
    monkeypatch.setattr(UpstreamBreaker, "on_failure", lambda breaker: None)  # each example is asked
    seen = 0

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(replies, st.booleans(), st.sampled_from([None, 1, 3]))
    def ends_once(reply: Reply, stream: bool, limit: int | None) -> None:
        nonlocal seen
        upstream.reply, asked = reply, len(upstream.received)
        body = BIG | {"stream": stream} | ({} if limit is None else {"max_tokens": limit})
        response = client.post(CHAT, json=body)
        assert len(upstream.received) - asked in (1, 2)
        seen += 1
        until(lambda: len(events_of(journal)) == seen)
        found = max(events_of(journal), key=lambda each: each.sequence)
        assert found.cost_nanodollars == cost(found)
        assert limit is None or found.completion_tokens <= limit
        is_whole = response.status_code == 200 and (not stream or response.text.endswith("data: [DONE]\n\n"))
        assert (found.finish_reason in (Ending.STOP, Ending.LENGTH)) == is_whole
        if response.status_code != 200:
            assert found.cost_nanodollars == 0
            assert json.loads(response.text)["error"]["code"]
        until(lambda: limiter.counts()["open"] == 0)
        assert (big.model.load.in_flight, big.model.load.waiting, big.model.load.reservations) == (0, 0, 0)
        big.model.load.check()

    ends_once()


def test_clients_that_leave_at_any_time(server, upstream, journal, limiter, big):
    """Each leaves after a number of bytes; some before the server has answered."""
    parts = [part for word in range(30) for part in (chat_chunk(f"w{word} "), 0.004)]
    upstream.reply = Reply([*parts, chat_chunk({}, "stop"), usage_chunk(), DONE])

    async def leave(after: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = json.dumps(BIG | {"stream": True}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer tp-standard\r\ncontent-length: {len(body)}"
        writer.write(head.encode() + b"\r\ncontent-type: application/json\r\n\r\n" + body)
        await writer.drain()
        if after:
            await reader.read(after)
        await asyncio.sleep(0.003 * after % 0.1)
        writer.close()

    async def all_leave() -> None:
        await asyncio.gather(*(leave(after) for after in range(0, 4000, 200)))

    asyncio.run(all_leave())
    until(lambda: big.model.load.in_flight == 0 and limiter.counts()["open"] == 0)
    until(lambda: upstream.live == 0)
    big.model.load.check()
    events = events_of(journal)
    assert len({each.request_id for each in events}) == len(events) <= 20
    assert all(each.cost_nanodollars == cost(each) for each in events)
