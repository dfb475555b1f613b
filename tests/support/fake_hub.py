"""A Hugging Face Hub on loopback: listings of repositories, and their files by range."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_API = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_LFS = (".safetensors", ".gguf")


@dataclass(slots=True)
class Refusal:
    """An answer in the place of a file or a listing."""

    status: int
    code: str = ""


@dataclass(slots=True)
class FakeHub:
    """`repositories`: files by name, by repository. All have the branch `main` and one commit.

    `storage`: another server, to which requests for files in LFS are redirected. `cut_bytes`: the body of a file in LFS
    ends after this many bytes, and every later request is refused. `refusals`: by repository, for a listing, or by
    "repository/file".
    """

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    storage: str = ""
    cut_bytes: int | None = None
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and `Range` of each request."""
    tokens: set[str | None] = field(default_factory=set)
    is_down: bool = False
    endpoint: str = ""

    def add_folder(self, name: str, folder: Path) -> None:
        files = (path for path in folder.rglob("*") if path.is_file())
        self.repositories[name] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    def listing(self, name: str) -> bytes:
        siblings = []
        for file, content in self.repositories[name].items():
            sibling = {"rfilename": file, "size": len(content)}
            sibling["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if file.endswith(_LFS):
                sibling["lfs"] = {
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "size": len(content),
                    "pointerSize": 134,
                }
            siblings.append(sibling)
        return json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode()


@contextmanager
def serving() -> Iterator[FakeHub]:
    """A hub that answers at its `endpoint`."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((path, self.headers.get("Range")))
            hub.tokens.add(self.headers.get("Authorization"))
            if hub.is_down:
                self.refuse(Refusal(503))
            elif match := _API.fullmatch(path):
                self.list_files(*match.groups())
            elif match := _FILE.fullmatch(path):
                self.send_file(*match.groups())
            else:
                self.refuse(Refusal(404))

        def list_files(self, name: str, revision: str) -> None:
            if name in hub.refusals:
                self.refuse(hub.refusals[name])
            elif name not in hub.repositories:
                self.refuse(Refusal(404, "RepoNotFound"))
            elif revision not in ("main", COMMIT):
                self.refuse(Refusal(404, "RevisionNotFound"))
            else:
                self.answer(200, hub.listing(name), {"Content-Type": "application/json"})

        def send_file(self, name: str, revision: str, file: str) -> None:
            if refusal := hub.refusals.get(f"{name}/{file}"):
                return self.refuse(refusal)
            assert revision == COMMIT
            if hub.storage and file.endswith(_LFS):
                return self.answer(302, b"", {"Location": f"{hub.storage}{self.path}"})
            content = hub.repositories[name][file]
            if file in hub.corrupt:
                content = content[:-1] + bytes([content[-1] ^ 1])
            status, headers, total, start = 200, {}, len(content), 0
            if wanted := self.headers.get("Range"):
                start = int(wanted.removeprefix("bytes=").split("-")[0])
                status, headers = 206, {"Content-Range": f"bytes {start}-{total - 1}/{total}"}
            self.answer(status, content[start:], headers, cut=file.endswith(_LFS))

        def refuse(self, refusal: Refusal) -> None:
            self.answer(refusal.status, b"{}", {"X-Error-Code": refusal.code} if refusal.code else {})

        def answer(self, status: int, body: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if cut and hub.cut_bytes is not None:
                self.wfile.write(body[: hub.cut_bytes])
                self.close_connection = hub.is_down = True
            else:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
