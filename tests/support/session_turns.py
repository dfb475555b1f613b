"""Turns of a session, as a client says them and as the model is shown them."""


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def system(text: str) -> dict:
    return {"role": "system", "content": text}


def body(*messages: dict, session: str = "trip", **fields) -> dict:
    return {"model": "tiny", "messages": list(messages), "session_id": session} | fields


def shown(engine) -> str:
    """The text of the engine's last prompt."""
    return bytes(engine.calls[-1].prompt[1:]).decode()


def contents(client, session: str = "trip") -> list:
    """The contents of a stored session's messages."""
    return [each["content"] for each in client.get(f"/v1/sessions/{session}").json()["messages"]]
