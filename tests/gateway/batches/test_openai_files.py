"""Files by OpenAI's own client, and hostile uploads."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from gateway.files.contents import LocalContent
from gateway.files.errors import FileStoreFull
from tests.support.batch_app import BatchGateway, as_jsonl, chat_line
from tests.support.gateway import AUTHORISED, KEY, PREMIUM_KEY, Server

CONTENT = os.urandom(3 * 1024 * 1024 + 17)


def test_upload_list_read_delete(sdk: openai.OpenAI, gateway: BatchGateway) -> None:
    created = sdk.files.create(file=("../ü 1.bin", CONTENT), purpose="user_data")
    assert (created.object, created.bytes, created.purpose, created.status) == (
        *("file", len(CONTENT), "user_data"),
        "processed",
    )
    assert created.filename == "../ü 1.bin"
    assert created.expires_at is None
    assert abs(created.created_at - time.time()) < 10
    assert sdk.files.retrieve(created.id) == created
    assert sdk.files.content(created.id).content == CONTENT
    batch_file = sdk.files.create(file=("a.jsonl", as_jsonl([chat_line("a")])), purpose="batch")
    assert batch_file.expires_at == batch_file.created_at + 30 * 86_400
    assert [each.id for each in sdk.files.list()] == [batch_file.id, created.id]
    assert [each.id for each in sdk.files.list(order="asc")] == [created.id, batch_file.id]
    assert [each.id for each in sdk.files.list(purpose="batch")] == [batch_file.id]
    assert [each.id for each in sdk.files.list(limit=1)] == [batch_file.id, created.id]
    deleted = sdk.files.delete(created.id)
    assert (deleted.id, deleted.deleted) == (created.id, True)
    for call in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(created.id)
    stored = [path.name for path in (gateway.folder / "files" / "contents").rglob("*") if path.is_file()]
    assert stored == [batch_file.id]


def test_a_file_expires(sdk: openai.OpenAI) -> None:
    created = sdk.files.create(file=b"x", purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600})
    assert created.expires_at == created.created_at + 3600


def test_files_are_the_tenants_own(sdk: openai.OpenAI, server: Server) -> None:
    created = sdk.files.create(file=b"secret", purpose="user_data")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=PREMIUM_KEY, max_retries=0) as other:
        assert list(other.files.list()) == []
        for call in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(created.id)
    assert sdk.files.content(created.id).content == b"secret"


def test_an_input_of_an_open_batch_stays(sdk: openai.OpenAI, gateway: BatchGateway) -> None:
    gateway.engine.pace_s = 0.05
    file = sdk.files.create(file=("a.jsonl", as_jsonl([chat_line("a", max_tokens=20)])), purpose="batch")
    sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="input of a batch"):
        sdk.files.delete(file.id)


BOUNDARY = "frontier"
FILE = b'content-disposition: form-data; name="file"; filename="a"\r\n\r\nx'
PURPOSE = b'content-disposition: form-data; name="purpose"\r\n\r\nuser_data'


def form(*parts: bytes, end: bytes = b"--\r\n") -> bytes:
    delimiter = b"--" + BOUNDARY.encode()
    return b"".join(delimiter + b"\r\n" + part + b"\r\n" for part in parts) + delimiter + end


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (form(FILE, PURPOSE), 200, None),
        (form(PURPOSE, FILE), 200, None),
        (form(PURPOSE), 400, "file"),
        (form(FILE), 400, "purpose"),
        (form(FILE, PURPOSE.replace(b"user_data", b"fine-tune")), 400, "purpose"),
        (form(FILE, PURPOSE, b'content-disposition: form-data; name="color"\r\n\r\nred'), 400, "color"),
        (form(FILE, FILE, PURPOSE), 400, "file"),
        (form(FILE, PURPOSE, PURPOSE), 400, "purpose"),
        (form(FILE, PURPOSE, end=b""), 400, None),
        (form(FILE, PURPOSE, end=b"xx"), 400, None),
        (form(b"\r\nx", FILE), 400, None),
        (form(b"content-disposition: form-data\r\n\r\nx"), 400, None),
        (form(b"x: " + b"y" * 10_000 + b"\r\n\r\nx"), 400, None),
        (form(FILE, PURPOSE.replace(b"user_data", b"u" * 2000)), 400, "purpose"),
        (b"", 400, None),
        (b"\r\n" * 100, 400, None),
    ],
)
def test_forms(server: Server, body: bytes, status: int, param: str | None) -> None:
    headers = AUTHORISED | {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}

    def pieces() -> Iterator[bytes]:
        """In small ones: delimiters are cut anywhere."""
        yield from (body[start : start + 7] for start in range(0, len(body), 7))

    for content in (body, pieces()):
        answer = httpx.post(f"{server.url}/v1/files", content=content, headers=headers)
        assert answer.status_code == status, answer.text
        if status != 200:
            assert answer.json()["error"]["param"] == param


def test_another_content_type_is_refused(server: Server) -> None:
    answer = httpx.post(f"{server.url}/v1/files", json={}, headers=AUTHORISED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("stated", "status", "code"),
    [
        ({"tenant_bytes": 100}, 400, "storage_limit_exceeded"),
        ({"tenant_files": 0}, 400, "storage_limit_exceeded"),
        ({"max_bytes": 100}, 413, "file_too_large"),
    ],
)
def test_limits(tmp_path: Path, stated: dict[str, int], status: int, code: str) -> None:
    gateway = BatchGateway(tmp_path, settings={"files": stated})
    with (
        gateway.serving() as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk,
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            sdk.files.create(file=b"x" * 2000, purpose="user_data")
        assert (refused.value.status_code, refused.value.code) == (status, code)
        assert list(sdk.files.list()) == []
    assert not [path for path in (tmp_path / "files").rglob("*") if path.is_file()]


def test_a_nearly_full_disk_refuses_uploads(tmp_path: Path) -> None:
    gateway = BatchGateway(tmp_path, min_free_bytes=2**62)
    with gateway.serving() as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        with pytest.raises(openai.APIStatusError) as refused:
            sdk.files.create(file=b"x", purpose="user_data")
        assert (refused.value.status_code, refused.value.code) == (507, "insufficient_storage")


def test_a_disk_that_fills_refuses_the_upload(sdk: openai.OpenAI, tmp_path: Path, monkeypatch) -> None:
    def fail(content: LocalContent, piece: bytes) -> None:
        raise FileStoreFull("the disk of the files is full")

    monkeypatch.setattr(LocalContent, "write", fail)
    with pytest.raises(openai.APIStatusError) as refused:
        sdk.files.create(file=b"x", purpose="user_data")
    assert (refused.value.status_code, refused.value.code) == (507, "insufficient_storage")
    assert not [path for path in (tmp_path / "files").rglob("*") if path.is_file()]
