"""Login, sessions, tokens of forms, headers: who comes in, and what every answer carries."""

import asyncio
import re
from collections import Counter

import pytest
import structlog

from gateway.management.console.app import MAX_BODY_BYTES
from gateway.management.console.headers import CONTENT_SECURITY_POLICY
from gateway.management.console.login import SESSION_COOKIE, own_address
from gateway.management.console.throttle import MAX_FAILURES
from tests.console.house import ACME, ORIGIN, House

NEW_TENANT = {"name": "initech", "tier": "standard"}


def cookie_of(answer) -> set[str]:
    """The parts of the session's cookie as it was set."""
    (header,) = (each for each in answer.headers.get_list("set-cookie") if each.startswith(f"{SESSION_COOKIE}="))
    return set(header.split("; "))


async def login(console: House, key: str, **fields: str):
    return await console.http.post("/console/login", data={"key": key, **fields})


@pytest.mark.parametrize("who", ["admin", "billing", "viewer", ACME])
async def test_a_key_opens_a_session_whose_cookie_does_not_hold_it(console: House, who: str) -> None:
    answer = await login(console, console.keys[who])
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    cookie = cookie_of(answer)
    assert {"HttpOnly", "SameSite=strict", "Path=/console", "Max-Age=43200"} <= cookie
    assert console.keys[who].split("-")[2] not in str(cookie)
    assert "<h1>Overview</h1>" in (await console.http.get("/console")).text


@pytest.mark.parametrize(
    ("site", "marked"),
    [
        ("http://localhost", False),
        ("http://127.0.0.1:8000", False),
        ("http://[::1]:8000", False),
        ("https://localhost", True),
        ("http://gateway.example", True),
        ("http://127.0.0.1.example", True),
    ],
)
async def test_the_cookie_is_for_https_alone_but_on_this_machine(console: House, site: str, marked: bool) -> None:
    answer = await console.http.post(f"{site}/console/login", data={"key": console.keys["viewer"]})
    assert ("Secure" in cookie_of(answer)) == marked


async def test_the_form_says_that_plain_http_from_elsewhere_does_not_do(console: House) -> None:
    warned = "over plain HTTP"
    assert warned in (await console.http.get("http://gateway.example/console/login")).text
    assert warned not in (await console.http.get("https://gateway.example/console/login")).text
    behind_proxy = {"x-forwarded-proto": "https"}
    assert warned not in (await console.http.get("http://gateway.example/console/login", headers=behind_proxy)).text


@pytest.mark.parametrize("path", ["", "/", "/tenants", "/nowhere", "/overview/now", "/logout"])
async def test_nothing_is_shown_without_a_session(console: House, path: str) -> None:
    answer = await console.get(path, who="")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/console/login")
    assert answer.content == b""


async def test_the_login_leads_to_where_one_wanted_to_go(console: House) -> None:
    wanted = await console.get("/tenants?tier=standard", who="")
    form = (await console.http.get(wanted.headers["location"])).text
    (address,) = re.findall(r'name="next" value="(.*?)"', form)
    answer = await login(console, console.keys["viewer"], next=address)
    assert answer.headers["location"] == "/console/tenants?tier=standard"


@pytest.mark.parametrize(
    "stated",
    [
        "",
        "//evil.example",
        "https://evil.example",
        "javascript:alert(1)",
        "/console//evil.example",
        "/console\\evil",
        "/console/\r\nx: y",
        "/console/../v1",
        "/consoles",
        "/v1/models",
    ],
)
def test_the_login_leads_nowhere_else(stated: str) -> None:
    assert own_address(stated) == "/console"


@pytest.mark.parametrize("key", ["", "no-key", "tp-aaaaaaaaaaaa-" + "A" * 43, "tpa-aaaaaaaaaaaa-" + "A" * 43])
async def test_what_is_no_key_opens_nothing(console: House, key: str) -> None:
    answer = await login(console, key)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "does not open the console" in answer.text
    assert not key or key not in answer.text


async def test_whoever_tries_many_keys_has_to_wait(console: House) -> None:
    for _ in range(MAX_FAILURES):
        assert (await login(console, "no key")).status_code == 401
    answer = await login(console, console.keys["admin"])
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 60
    assert "set-cookie" not in answer.headers


async def test_of_many_keys_tried_at_once_no_more_are_looked_up(console: House) -> None:
    answers = await asyncio.gather(*(login(console, f"tp-aaaaaaaaaaaa-{n:043}") for n in range(100)))
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses == {401: MAX_FAILURES, 429: 100 - MAX_FAILURES}


async def test_keys_that_open_the_console_do_not_count(console: House) -> None:
    for _ in range(MAX_FAILURES + 1):
        assert (await login(console, console.keys["viewer"])).status_code == 303
        console.http.cookies.clear()


async def test_the_log_says_who_came_in_and_who_did_not_and_never_a_key(console: House) -> None:
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as logged:
        await login(console, console.keys["viewer"])
        console.http.cookies.clear()
        await login(console, "tp-aaaaaaaaaaaa-" + "A" * 43)
    told = [(each["status"], each["key_id"], each["error"]) for each in logged if each["event"] == "request"]
    assert told == [(303, console.keys["viewer"].split("-")[1], None), (401, None, "invalid_api_key")]
    assert console.keys["viewer"] not in str(logged)
    assert "A" * 43 not in str(logged)


async def test_a_session_ends_with_its_key(console: House) -> None:
    created = await console.tenants.create_key(ACME, "short-lived")
    console.keys["short-lived"] = created.plaintext
    console.token("short-lived")
    await console.tenants.revoke_key(created.record.public_id)
    answer = await console.get("", "short-lived")
    assert answer.headers["location"] == "/console/login"
    assert f'{SESSION_COOKIE}=""' in cookie_of(answer)


async def test_a_logout_ends_the_session_for_good(console: House) -> None:
    cookie = {"cookie": f"{SESSION_COOKIE}={console.token('viewer')}"}
    answer = await console.http.post("/console/logout", data={"csrf": console.csrf("viewer")}, headers=cookie)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/login")
    assert (await console.http.get("/console", headers=cookie)).status_code == 303


async def test_a_key_for_none_of_the_pages_opens_no_session(console: House) -> None:
    operations = console.admin.operations
    administrator = await console.admin.authenticate(console.keys["admin"])
    path, body = {"tenant_id": console.tenant[ACME].id}, {"scopes": ["embeddings"]}
    created = await operations.change("createKey", administrator, "req_1", path, body)
    answer = await login(console, created["key"])
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert "none of the console" in answer.text


async def tenants(console: House) -> set[str]:
    return {each.name for each in await console.tenants.list_tenants()}


async def send(console: House, headers: dict[str, str], **fields: str):
    """The form that creates a tenant, as one may send it who is not the page."""
    cookie = {"cookie": f"{SESSION_COOKIE}={console.token('admin')}"}
    return await console.http.post(
        "/console/tenants", data={"act": "create", **NEW_TENANT, **fields}, headers=cookie | headers
    )


async def test_a_form_of_the_page_itself_is_done(console: House) -> None:
    headers = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
    assert (await send(console, headers, csrf=console.csrf("admin"))).status_code == 303
    assert NEW_TENANT["name"] in await tenants(console)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:81"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
)
async def test_a_form_of_another_site_is_refused_whatever_it_knows(console: House, headers: dict[str, str]) -> None:
    assert (await send(console, headers, csrf=console.csrf("admin"))).status_code == 403
    assert (
        await console.http.post("/console/login", data={"key": console.keys["admin"]}, headers=headers)
    ).status_code == 403
    assert NEW_TENANT["name"] not in await tenants(console)


@pytest.mark.parametrize("whose", ["", "x", "viewer"])
async def test_a_form_needs_the_token_of_its_session(console: House, whose: str) -> None:
    token = console.csrf(whose) if whose == "viewer" else whose
    answer = await send(console, {"origin": ORIGIN}, csrf=token)
    assert (answer.status_code, "another session" in answer.text) == (403, True)
    assert NEW_TENANT["name"] not in await tenants(console)


async def test_only_a_post_changes_anything(console: House) -> None:
    await console.get("/tenants", params={"act": "create", "csrf": console.csrf("admin"), **NEW_TENANT})
    assert NEW_TENANT["name"] not in await tenants(console)
    for method in ("PUT", "DELETE", "PATCH"):
        cookie = {"cookie": f"{SESSION_COOKIE}={console.token('admin')}"}
        answer = await console.http.request(method, "/console/tenants", headers=cookie)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


async def test_every_answer_has_the_headers_that_bind_a_browser(console: House) -> None:
    static = re.findall(r'href="(/console/static/.*?\.css)"', await console.page(""))[0]
    too_large = {"content-length": str(MAX_BODY_BYTES + 1), "content-type": "application/x-www-form-urlencoded"}
    answers = [
        await console.get(""),
        await console.get("/nowhere"),
        await console.get("", who=""),
        await console.get("/login", who=""),
        await console.http.get(static),
        await console.http.get("/console/static/x/y.css"),
        await console.http.post("/console/login", content=b"x" * (MAX_BODY_BYTES + 1), headers=too_large),
        await login(console, "no key"),
    ]
    assert [each.status_code for each in answers] == [200, 404, 303, 200, 200, 404, 413, 401]
    for answer in answers:
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["x-request-id"]
    assert "unsafe" not in CONTENT_SECURITY_POLICY


async def test_files_are_kept_for_good_under_the_name_of_their_content_and_pages_never(console: House) -> None:
    page = await console.get("")
    assert page.headers["cache-control"] == "no-store"
    for path in set(re.findall(r'(?:href|src)="(/console/static/.*?)"', page.text)):
        file = await console.http.get(path)
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
        edition, name = path.removeprefix("/console/static/").split("/")
        assert (await console.http.get(f"/console/static/{edition[::-1]}/{name}")).status_code == 404
        assert (await console.http.get(f"/console/static/{edition}/..%2fapp.py")).status_code == 404


async def test_a_page_has_no_script_and_no_style_of_its_own(console: House) -> None:
    for path in ("", "/login"):
        page = await console.page(path, "" if path else "admin")
        assert re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:", page) == []


async def test_what_does_not_exist_is_a_page_that_leads_back(console: House) -> None:
    page = await console.page("/nowhere", status=404)
    assert "Page not found" in page
    assert 'aria-label="Pages"' in page


async def test_a_refused_form_is_shown_again_with_why_beside_its_field(console: House) -> None:
    answer = await console.post("/tenants", "create", name="<acme>", tier="standard")
    assert answer.status_code == 400
    assert 'value="&lt;acme&gt;"' in answer.text
    field = answer.text.split('id="create-name"')[1].split("</div>")[0]
    assert "must match" in field
    taken = await console.post("/tenants", "create", name=ACME, tier="standard")
    assert taken.status_code == 409
    assert 'role="alert"' in taken.text


async def test_a_form_that_no_page_has_does_nothing(console: House) -> None:
    assert (await console.post("/tenants", "explode")).status_code == 400
    assert (await console.post("/tenants", "create", "viewer", **NEW_TENANT)).status_code == 403
    assert (await console.post("/tenants", "create", ACME, **NEW_TENANT)).status_code == 403
    assert NEW_TENANT["name"] not in await tenants(console)


async def test_the_theme_goes_back_to_its_page_alone(console: House) -> None:
    cookie = {"cookie": f"{SESSION_COOKIE}={console.token('viewer')}"}
    data = {"csrf": console.csrf("viewer"), "theme": "dark", "next": "https://evil.example"}
    answer = await console.http.post("/console/theme", data=data, headers=cookie)
    assert answer.headers["location"] == "/console"
    cookie = {"cookie": f"{SESSION_COOKIE}={console.token('viewer')}; turnpike_theme=dark"}
    assert 'data-theme="dark"' in (await console.http.get("/console", headers=cookie)).text
    cookie = {"cookie": f'{SESSION_COOKIE}={console.token("viewer")}; turnpike_theme="><script>'}
    assert 'data-theme="auto"' in (await console.http.get("/console", headers=cookie)).text


async def test_the_api_does_not_know_sessions_and_the_console_no_bearer(console: House) -> None:
    cookie = {"cookie": f"{SESSION_COOKIE}={console.token('admin')}"}
    assert (await console.http.get("/admin/v1/tenants", headers=cookie)).status_code == 401
    bearer = {"authorization": f"Bearer {console.keys['admin']}"}
    assert (await console.http.get("/console/tenants", headers=bearer)).status_code == 303
