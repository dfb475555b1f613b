"""The usage that a client receives equals that of the journal, the store, the admin API and the invoice."""

import time

import httpx
import pytest

from tests.support.program import Program


@pytest.fixture
def admin(program: Program) -> httpx.Client:
    key = program.command("admin-key", "create", "--role", "admin", "books").splitlines()[-1]
    return httpx.Client(base_url=f"{program.url}/admin/v1", headers={"authorization": f"Bearer {key}"}, timeout=30)


def ask(program: Program, **fields: object) -> dict:
    body = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 8, "ignore_eos": True, **fields}
    return post(program, "completions", body, program.key).json()


def post(program: Program, path: str, body: dict, key: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{program.url}/v1/{path}", json=body, headers=headers, timeout=60).raise_for_status()


def arrived(admin: httpx.Client, request_ids: set[str]) -> list[dict]:
    """The requests as the store has them, when it has them all."""
    deadline = time.monotonic() + 60
    while True:
        found = [each for each in admin.get("/requests?limit=100").json()["data"] if each["request_id"] in request_ids]
        if len(found) == len(request_ids):
            return found
        assert time.monotonic() < deadline, f"{len(found)} of {len(request_ids)} have arrived"
        time.sleep(0.2)


def test_the_books_agree(program: Program, admin: httpx.Client) -> None:
    with admin:
        answers = [ask(program, max_tokens=4 + n) for n in range(6)]
        told = {answer["id"]: answer["usage"] for answer in answers}
        stored = {each["request_id"]: each for each in arrived(admin, set(told))}
        for request_id, usage in told.items():
            row = stored[request_id]
            assert row["prompt_tokens"] == usage["prompt_tokens"]
            assert row["completion_tokens"] == usage["completion_tokens"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert row["cached_tokens"] == cached
            # dollars per million tokens are 0.1, 0.05 and 0.4, and acme is premium: three times that
            fresh = usage["prompt_tokens"] - cached
            assert row["cost_nanodollars"] == 3 * (fresh * 100 + cached * 50 + usage["completion_tokens"] * 400)
            assert row["engine_ns"] > 0

        books = admin.get("/reconciliation").raise_for_status().json()
        assert books["drift"] is False
        assert books["journal"]["events"] >= len(told)

        (tenant,) = [each for each in admin.get("/tenants?limit=100").json()["data"] if each["name"] == "acme"]
        month = time.strftime("%Y-%m", time.gmtime())
        draft = admin.get(f"/tenants/{tenant['id']}/invoices/{month}/draft").raise_for_status().json()
        spent = admin.get(f"/requests?limit=100&tenant_id={tenant['id']}").json()["data"]
        assert draft["total_nanodollars"] >= sum(each["cost_nanodollars"] for each in spent) > 0


def test_embeddings_are_invoiced_as_their_prompts(program: Program, admin: httpx.Client) -> None:
    program.command("tenant", "create", "searcher", "--tier", "standard")
    key = program.command("key", "create", "--tenant", "searcher")
    with admin:
        body = {"model": "tiny", "input": ["The quick brown fox " * 10] * 2}
        answers = [post(program, "embeddings", body, key).json() for _ in range(2)]
        stored = {each["request_id"]: each for each in arrived(admin, {answer["id"] for answer in answers})}
        for answer in answers:
            usage, row = answer["usage"], stored[answer["id"]]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert (row["prompt_tokens"], row["cached_tokens"]) == (usage["prompt_tokens"], cached)
            assert row["completion_tokens"] == 0
            assert row["cost_nanodollars"] == (usage["prompt_tokens"] - cached) * 100 + cached * 50
        month = time.strftime("%Y-%m", time.gmtime())
        tenant_id = next(iter(stored.values()))["tenant_id"]
        draft = admin.get(f"/tenants/{tenant_id}/invoices/{month}/draft").raise_for_status().json()
        assert draft["total_nanodollars"] == sum(each["cost_nanodollars"] for each in stored.values()) > 0


def test_a_viewer_changes_nothing(program: Program) -> None:
    key = program.command("admin-key", "create", "--role", "viewer", "looker").splitlines()[-1]
    headers = {"authorization": f"Bearer {key}"}
    url = f"{program.url}/admin/v1/tenants"
    assert httpx.get(url, headers=headers).status_code == 200
    assert httpx.post(url, json={"name": "x", "tier": "standard"}, headers=headers).status_code == 403
    assert httpx.get(url, headers={"authorization": f"Bearer {program.key}"}).status_code == 401
