"""The images that the files name: they agree, and a registry (here a fake one) is asked for tags and digests."""

import json
import re
import shutil
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from deploy import images
from deploy.images import OURS, Image, RegistryError, digest_of, disagreements, images_of
from tests.deploy.compose import ROOT, load_compose, required_variables
from tests.deploy.dockerfile import stages

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
DIGEST = "sha256:" + "a1" * 32


@dataclass
class FakeRegistry:
    """Has `tags`, by `library/name:tag`, for those who show the token of the repository."""

    tags: dict[str, str] = field(default_factory=dict)
    url: str = ""
    status: int | None = None
    """Of every answer, instead of what it would be."""
    accepted: set[str] = field(default_factory=set)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """The place of tokens."""
            asked = parse_qs(urlsplit(self.path).query)
            assert asked["service"] == ["fake"]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"token": f"for {asked['scope'][0]}"}).encode())

        def do_HEAD(self) -> None:
            name, _, tag = self.path.removeprefix("/v2/").partition("/manifests/")
            scope = f"repository:{name}:pull"
            fake.accepted.update(self.headers["accept"].split(", "))
            if fake.status is not None:
                self.send_response(fake.status)
            elif self.headers["authorization"] != f"Bearer for {scope}":
                self.send_response(401)
                self.send_header("www-authenticate", f'Bearer realm="{fake.url}/token",service="fake",scope="{scope}"')
            elif f"{name}:{tag}" in fake.tags:
                self.send_response(200)
                self.send_header("docker-content-digest", fake.tags[f"{name}:{tag}"])
            else:
                self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that name images."""
    for name in ("docker-compose.yml", "Dockerfile", "pyproject.toml", "deploy/kubernetes", "deploy/helm"):
        target = tmp_path / name
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, symlinks=True)
        else:
            target.parent.mkdir(exist_ok=True, parents=True)
            shutil.copy(ROOT / name, target)
    return tmp_path


def everything(registry: FakeRegistry, root: Path = ROOT) -> None:
    """Let it have each image, with a digest of its own."""
    foreign = dict.fromkeys(image for _, image in images_of(root) if image.repository != OURS)
    for index, image in enumerate(foreign):
        name = image.repository if "/" in image.repository else f"library/{image.repository}"
        registry.tags[f"{name}:{image.tag}"] = f"sha256:{index:064x}"


def test_the_files_agree_on_their_images(capsys: pytest.CaptureFixture[str]) -> None:
    assert images.main([]) == 0
    assert "postgres:" in capsys.readouterr().out


def test_it_finds_every_image() -> None:
    found = images_of()
    services = load_compose(dict.fromkeys(required_variables(), "x"))["services"]
    named = {str(image) for _, image in found}
    assert {service["image"] for service in services.values()} < named
    assert {stage.base for stage in stages().values()} - stages().keys() < named
    assert {file.partition("/")[0] for file, _ in found} == {"docker-compose.yml", "Dockerfile", "deploy"}
    ours = {(file, image.tag) for file, image in found if image.repository == OURS}
    assert {file for file, _ in ours} >= {"docker-compose.yml", images.HELM, "deploy/kubernetes/base/gateway.yaml"}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "deploy/kubernetes/base/sink.yaml",
            "turnpike:0.2.0",
            "turnpike:0.1.0",
            "turnpike:0.1.0 is not of this version",
        ),
        ("deploy/helm/turnpike/Chart.yaml", f"appVersion: {VERSION}", "appVersion: 0.1", "turnpike:0.1 is not of this"),
        ("docker-compose.yml", "caddy:2.11.4-alpine", "caddy:latest", "caddy:latest is no full version"),
        ("docker-compose.yml", "redis:8.10.0-alpine", "redis:8.8.0-alpine", "redis is named differently"),
        ("Dockerfile", "python:3.11.15-slim-bookworm AS build", "python:3.11.14-slim-bookworm AS build", "python is"),
    ],
)
def test_files_that_disagree_are_named(
    file: str, old: str, new: str, message: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (copy / file).read_text(encoding="utf-8")
    assert old in text
    (copy / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    assert images.main([], copy) == 1
    assert message in capsys.readouterr().err


def test_an_image_without_a_tag_is_no_image() -> None:
    for text in ("redis", "localhost:5000/redis", "redis@sha256:" + "0" * 64):
        with pytest.raises(ValueError, match="tag"):
            Image.parse(text)
    assert Image.parse(f"host:5000/a/b:1.2@{DIGEST}") == Image("host:5000/a/b", "1.2", DIGEST)
    assert disagreements([("f", Image("a/b", "v1.2"))], "1.0") == []


def test_a_registry_is_asked_for_a_tag_with_a_token(registry: FakeRegistry) -> None:
    registry.tags = {"library/redis:8.1.0": DIGEST, "prom/prometheus:v3.0.0": DIGEST}
    assert digest_of(Image("redis", "8.1.0"), registry.url) == DIGEST
    assert digest_of(Image("prom/prometheus", "v3.0.0"), registry.url) == DIGEST
    assert "application/vnd.oci.image.index.v1+json" in registry.accepted, "or it would tell the digest of one platform"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (None, "redis:8.1.0 is not there"),
        (429, "redis:8.1.0 cannot be looked up: status 429"),
        (401, "redis:8.1.0 cannot be looked up: it wants another login"),
        (200, "redis:8.1.0 has no digest"),
    ],
)
def test_what_a_registry_does_not_say_is_an_error(status: int | None, message: str, registry: FakeRegistry) -> None:
    registry.status = status
    with pytest.raises(RegistryError, match=re.escape(message)):
        digest_of(Image("redis", "8.1.0"), registry.url)


def test_a_registry_that_is_away_is_an_error() -> None:
    with pytest.raises(RegistryError, match="cannot be looked up"):
        digest_of(Image("redis", "8.1.0"), "http://127.0.0.1:1")


def test_all_tags_are_looked_up_and_those_that_are_not_there_are_named(
    registry: FakeRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    everything(registry)
    assert images.main(["--registry", registry.url]) == 0
    (gone,) = [name for name in registry.tags if name.startswith("library/redis:")]
    del registry.tags[gone]
    assert images.main(["--registry", f"{registry.url}/"]) == 1
    assert capsys.readouterr().err == f"{gone.removeprefix('library/')} is not there\n"


def test_digests_are_written_down_and_a_tag_that_moved_is_seen(
    registry: FakeRegistry, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything(registry, copy)
    before = {name: (copy / name).read_text(encoding="utf-8") for name in images.PINNED_FILES}
    asked = ["--registry", registry.url]
    assert images.main([*asked, "--pin"], copy) == 0
    foreign = [image for _, image in images_of(copy) if image.repository != OURS]
    assert all(image.digest in registry.tags.values() for image in foreign)
    for name, text in before.items():
        pinned = (copy / name).read_text(encoding="utf-8")
        assert re.sub("@sha256:[0-9a-f]{64}", "", pinned) == text, "and nothing else has changed"
    assert images.main(asked, copy) == 0
    moved = next(name for name in registry.tags if name.startswith("grafana/"))
    registry.tags[moved] = DIGEST
    assert images.main(asked, copy) == 1
    assert f"its tag is {DIGEST} now" in capsys.readouterr().err
    assert images.main([*asked, "--pin"], copy) == 0
    assert {image.digest for _, image in images_of(copy) if image.repository == "grafana/grafana"} == {DIGEST}


def test_nothing_is_written_down_where_one_is_missing(registry: FakeRegistry, copy: Path) -> None:
    everything(registry, copy)
    registry.tags.popitem()
    before = [(copy / name).read_bytes() for name in images.PINNED_FILES]
    assert images.main(["--registry", registry.url, "--pin"], copy) == 1
    assert [(copy / name).read_bytes() for name in images.PINNED_FILES] == before


def test_digests_come_from_a_registry() -> None:
    with pytest.raises(SystemExit):
        images.main(["--pin"])
