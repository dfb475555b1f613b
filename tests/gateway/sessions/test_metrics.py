from prometheus_client import CollectorRegistry, generate_latest

from gateway.sessions import SessionKey, Sessions
from gateway.sessions.memory import MemorySessionStore
from gateway.sessions.metrics import SessionCollector
from gateway.sessions.policy import Cut


async def test_what_became_of_turns_is_told():
    sessions = Sessions(MemorySessionStore(), wait_s=0.0)
    registry = CollectorRegistry()
    registry.register(SessionCollector(sessions.counts))
    async with sessions.turn(SessionKey("acme", "a")) as turn:
        await turn.keep(turn.history.with_messages([{"role": "user", "content": "a"}]), Cut.SUMMARY)
    async with sessions.turn(SessionKey("acme", "b")):
        text = generate_latest(registry).decode()
    await sessions.aclose()
    for line in (
        "turnpike_session_turns_open 1.0",
        'turnpike_session_turns_total{outcome="kept"} 1.0',
        'turnpike_session_turns_total{outcome="busy"} 0.0',
        'turnpike_session_cuts_total{how="summary"} 1.0',
        "turnpike_sessions 2.0",
        "turnpike_sessions_evicted_total 0.0",
    ):
        assert line in text.splitlines()
