"""The page `/docs`: it shows every operation and schema of the documents, and needs neither scripts nor a key."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from starlette.testclient import TestClient

from gateway.management.http.openapi import openapi_document
from gateway.management.operations.context import AdminContext
from gateway.management.operations.resources import admin_routes
from gateway.reference.document import v1_document
from gateway.reference.page import reference_page, type_of
from tests.gateway.admin.harness import TIERS

_NOTHING: Any = None
ADMIN_ROUTES = admin_routes(AdminContext(_NOTHING, b"", TIERS, _NOTHING, _NOTHING, _NOTHING, invoice_grace_s=0))
DOCUMENTS = {"/openapi.json": v1_document(), "/admin/v1/openapi.json": openapi_document(ADMIN_ROUTES)}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name != "style"
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")


def test_links_lead_to_every_operation_and_schema() -> None:
    page = Page(reference_page(DOCUMENTS))
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    for number, (address, document) in enumerate(DOCUMENTS.items()):
        named = [each["operationId"] for item in document["paths"].values() for each in item.values()]
        named += document["components"]["schemas"]
        assert {f"api{number}-{name}" for name in named} <= set(page.ids)
        assert address in page.links
    assert page.tags.isdisjoint({"script", "style", "iframe", "img", "form"})


def test_texts_are_escaped() -> None:
    document = v1_document('<script>"&')
    assert "<script>" not in reference_page({"/openapi.json": document})


def test_anyone_may_read_it_without_scripts(app) -> None:
    with TestClient(app) as stranger:
        page = stranger.get("/docs")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src" not in policy
        [style] = re.findall(r'<link rel="stylesheet" href="([^"]+)">', page.text)
        assert stranger.get(style).headers["content-type"] == "text/css; charset=utf-8"
        assert stranger.get("/").text.count('href="/docs"') == 1


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 20}, "integer, 1 to 20"),
        ({"type": "integer", "minimum": 0}, "integer, from 0"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, "string or array of string"),
        ({"$ref": "#/components/schemas/Message"}, "Message"),
        ({"enum": ["a", None, 1]}, '"a" | null | 1'),
        ({}, "any"),
    ],
)
def test_types_are_words(schema, text) -> None:
    assert type_of(schema) == text
