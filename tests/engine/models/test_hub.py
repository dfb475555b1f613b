"""Fetching checkpoints from a hub on loopback: real checkpoints, broken downloads, refusals."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from engine.catalog.catalog import DownloadError, FetchError
from engine.catalog.hub import fetch, fetched, is_repository
from engine.checkpoints.checkpoint import open_checkpoint
from kernels.arrays import FLOAT32
from tests.engine.models.tiny_gguf import make_gguf
from tests.support.fake_hub import COMMIT, FakeHub, Refusal, serving
from tests.support.tiny_models import TinyFolder, make_checkpoint

NAME, FOLDER = "acme/tiny", "acme--tiny"
WEIGHTS = "model.safetensors"
TOKEN = "hf_not-to-be-seen"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)
        yield hub
        close_session()


@pytest.fixture
def published(hub: FakeHub, tiny_folder: TinyFolder) -> Path:
    """A checkpoint on the hub, among files that are not needed."""
    folder = tiny_folder("llama")
    hub.add_folder(NAME, folder)
    hub.repositories[NAME] |= {"README.md": b"#", "pytorch_model.bin": b"pickled", "onnx/model.onnx": b"graph"}
    return folder


def same_weights(one: Path, other: Path) -> bool:
    first, second = (dict(open_checkpoint(path).tensors(FLOAT32)) for path in (one, other))
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def refused(tmp_path: Path, **options: str) -> str:
    """The message of a fetch that ends with an error: one line, without the token, and nothing has the final name."""
    with pytest.raises(FetchError) as caught:
        fetch(NAME, tmp_path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert TOKEN not in message
    assert fetched(NAME, tmp_path) is None
    return message


def test_a_folder_is_fetched_once(hub: FakeHub, published: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = fetch(NAME, tmp_path, lambda done, total: seen.append((done, total)))
    assert path == tmp_path / FOLDER == fetched(NAME, tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert {each.name for each in path.iterdir()} - {".fetched"} == {
        name for name in hub.repositories[NAME] if (published / name).exists()
    }
    assert same_weights(path, published)
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == sum(each.stat().st_size for each in path.iterdir() if each.name[0] != ".")
    assert hub.tokens == {f"Bearer {TOKEN}"}
    requests = len(hub.requests)
    assert fetch(NAME, tmp_path) == path
    assert len(hub.requests) == requests


def test_shards_come_with_their_index(hub: FakeHub, tmp_path: Path) -> None:
    published = make_checkpoint(tmp_path / "published", "llama", max_shard_size="64KB")
    hub.add_folder(NAME, published)
    path = fetch(NAME, tmp_path / "models")
    assert len(list(path.glob("model-*.safetensors"))) > 1
    assert same_weights(path, published)


def test_an_index_cannot_name_what_is_not_there(hub: FakeHub, published: Path, tmp_path: Path) -> None:
    del hub.repositories[NAME][WEIGHTS]
    hub.repositories[NAME][f"{WEIGHTS}.index.json"] = b'{"weight_map": {"a": "../../secret.safetensors"}}'
    assert "names files that are not there" in refused(tmp_path)


def test_the_only_gguf_file_is_fetched(hub: FakeHub, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    source = make_gguf(tmp_path / "tiny.gguf", tiny_folder("llama"))
    hub.repositories[NAME] = {"tiny.Q8_0.gguf": source.read_bytes(), "README.md": b"#"}
    path = fetch(NAME, tmp_path / "models")
    assert path == tmp_path / "models" / FOLDER / "tiny.Q8_0.gguf" == fetched(NAME, tmp_path / "models")
    assert same_weights(path, source)


def test_of_several_gguf_files_one_is_chosen(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories[NAME] = {"a.gguf": b"GGUF a", "deep/b.gguf": b"GGUF b"}
    assert "choose one by --file: a.gguf, deep/b.gguf" in refused(tmp_path)
    assert "has no GGUF file 'c.gguf'; it has a.gguf, deep/b.gguf" in refused(tmp_path, file="c.gguf")
    path = fetch(NAME, tmp_path, file="deep/b.gguf")
    assert path == tmp_path / FOLDER / "deep" / "b.gguf" == fetched(NAME, tmp_path)
    assert path.read_bytes() == b"GGUF b"
    assert fetch(NAME, tmp_path, file="deep/b.gguf") == path
    with pytest.raises(FetchError, match="remove it to fetch another"):
        fetch(NAME, tmp_path, file="a.gguf")


def test_an_interrupted_download_is_resumed(hub: FakeHub, published: Path, tmp_path: Path) -> None:
    half = (published / WEIGHTS).stat().st_size // 2
    hub.cut_bytes = half
    assert "127.0.0.1 answers 503; fetch again to resume" in refused(tmp_path)
    hub.cut_bytes, hub.is_down = None, False
    hub.requests.clear()
    path = fetch(NAME, tmp_path)
    (_, wanted), *others = [each for each in hub.requests if "/resolve/" in each[0]]
    assert not others, "whole files stay"
    assert half - 4096 <= int(wanted.removeprefix("bytes=").rstrip("-")) <= half
    assert (path / WEIGHTS).read_bytes() == (published / WEIGHTS).read_bytes()
    assert not list(path.rglob("*.part"))


def test_the_token_does_not_follow_a_redirect_to_storage(hub: FakeHub, published: Path, tmp_path: Path) -> None:
    with serving() as storage:
        storage.repositories = hub.repositories
        hub.storage = storage.endpoint
        assert same_weights(fetch(NAME, tmp_path), published)
        close_session()
    assert [path.rpartition("/")[2] for path, _ in storage.requests] == [WEIGHTS]
    assert storage.tokens == {None}


@pytest.mark.parametrize("file", ["config.json", WEIGHTS])
def test_a_wrong_checksum_is_refused(file: str, hub: FakeHub, published: Path, tmp_path: Path) -> None:
    hub.corrupt.add(file)
    assert f"{file} of {NAME} arrived with another checksum than the hub states" in refused(tmp_path)
    assert not list(tmp_path.rglob("*.part"))
    hub.corrupt.clear()
    assert same_weights(fetch(NAME, tmp_path), published)


@pytest.mark.parametrize(
    ("of", "refusal", "message"),
    [
        (NAME, Refusal(404, "RepoNotFound"), "127.0.0.1 has no model acme/tiny, or not for this HF_TOKEN (404)"),
        (NAME, Refusal(401), "127.0.0.1 has no model acme/tiny, or not for this HF_TOKEN (401)"),
        (NAME, Refusal(403), "acme/tiny is gated: accept its terms on 127.0.0.1, and set HF_TOKEN"),
        (f"{NAME}/config.json", Refusal(403, "GatedRepo"), "acme/tiny is gated"),
        (f"{NAME}/{WEIGHTS}", Refusal(401, "GatedRepo"), "acme/tiny is gated"),
        (f"{NAME}/{WEIGHTS}", Refusal(500), "127.0.0.1 answers 500"),
    ],
)
def test_refusals_are_clear(
    of: str, refusal: Refusal, message: str, hub: FakeHub, published: Path, tmp_path: Path
) -> None:
    hub.refusals[of] = refusal
    assert message in refused(tmp_path)


def test_a_revision_is_kept_until_it_is_removed(hub: FakeHub, published: Path, tmp_path: Path) -> None:
    assert "has no revision 'v2' on 127.0.0.1" in refused(tmp_path, revision="v2")
    path = fetch(NAME, tmp_path, revision=COMMIT)
    assert fetch(NAME, tmp_path) == fetch(NAME, tmp_path, revision=COMMIT) == path
    with pytest.raises(FetchError, match="remove it to fetch another"):
        fetch(NAME, tmp_path, revision="v2")


def test_a_changed_file_is_refused(hub: FakeHub, published: Path, tmp_path: Path) -> None:
    path = fetch(NAME, tmp_path)
    (path / "config.json").write_text("{}")
    with pytest.raises(FetchError, match="is not what was fetched"):
        fetch(NAME, tmp_path)
    (path / ".fetched").unlink()
    with pytest.raises(FetchError, match="is not a fetched checkpoint"):
        fetch(NAME, tmp_path)
    assert fetched(NAME, tmp_path) is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"pytorch_model.bin": b"pickled"}, "has neither model.safetensors"),
        ({"../tiny.gguf": b"GGUF", "/tmp/tiny.gguf": b"GGUF"}, "nor a GGUF file: it cannot be served"),
        ({WEIGHTS: b"weights", "tokenizer.json": b"{}"}, "has no config.json: it cannot be served"),
        ({WEIGHTS: b"weights"}, "has no config.json and no tokenizer.json"),
    ],
)
def test_unservable_models_are_not_fetched(files: dict[str, bytes], message: str, hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories[NAME] = files
    assert message in refused(tmp_path)
    assert len(hub.requests) == 1


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "../tiny", "acme/..", "a--b/tiny", "/tiny", "acme/", "a b/c", "./a"])
def test_other_names_are_no_repositories(name: str, hub: FakeHub, tmp_path: Path) -> None:
    assert not is_repository(name)
    assert fetched(name, tmp_path) is None
    with pytest.raises(FetchError, match="is not the name of a repository"):
        fetch(name, tmp_path)
    assert not hub.requests


def test_one_process_fetches_at_a_time(hub: FakeHub, published: Path, tmp_path: Path) -> None:
    partial = tmp_path / f".fetch-{FOLDER}"
    partial.mkdir()
    other = os.open(partial, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert "another process is fetching" in refused(tmp_path)
    os.close(other)
    (partial / "stale.gguf").write_bytes(b"of another revision")
    assert not (fetch(NAME, tmp_path) / "stale.gguf").exists()


def test_a_hub_that_is_not_there(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://user:s3cret@127.0.0.1:1")
    message = refused(tmp_path)
    assert "could not be fetched from 127.0.0.1 (ConnectError)" in message
    assert "s3cret" not in message


def test_a_server_that_is_no_hub(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[NAME] = {}
    monkeypatch.setattr(FakeHub, "listing", lambda *_: b"<html>")
    with pytest.raises(DownloadError, match="does not answer as a Hugging Face Hub: check HF_ENDPOINT"):
        fetch(NAME, tmp_path)


def test_a_folder_that_cannot_be_made_is_named(hub: FakeHub, published: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FetchError, match="could not be stored in"):
        fetch(NAME, tmp_path / "file" / "models")
