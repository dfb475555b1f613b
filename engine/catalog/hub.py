"""Checkpoints of the Hugging Face Hub, by repository: `owner/name`, or `owner/name:file.gguf` for one GGUF file of it.

    models_dir/.fetch-owner--name/    an unfinished fetch: whole files, and `.part` files to resume
    models_dir/owner--name/           a finished fetch: every file has the digest that the hub states

`HF_ENDPOINT` names another hub. `HF_TOKEN` opens private and gated repositories; no message holds it.
"""

import fcntl
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engine.catalog.catalog import DownloadError, FetchError, Progress
from engine.catalog.shipped import sha256

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_NEEDED = ("config.json", "tokenizer.json")
_TEXTS = (
    *_NEEDED,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_RECORD = ".fetched"
"""JSON: the revision that was asked for, its commit, and the digest of each file."""
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

BeforeWeights = Callable[[Path, int], None]
"""Called with the folder of config and tokenizer, empty for a GGUF file, and the bytes of the weights to download."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a repository. `digest`, hexadecimal: SHA-256 in Git LFS, else the id of Git's blob, a SHA-1."""

    name: str
    size_bytes: int
    digest: str


def is_repository(name: str) -> bool:
    """Whether a name has the form `owner/name`. The hub forbids `--` and `..` in it: no two share a folder name."""
    return _REPOSITORY.fullmatch(name) is not None and "--" not in name and ".." not in name


def fetched(name: str, models_dir: Path) -> Path | None:
    """The folder or the GGUF file of a repository that `fetch` finished, without a look at the files' content; None if
    there is none."""
    repository, _, file = name.partition(":")
    if not is_repository(repository):
        return None
    folder = _folder(repository, models_dir)
    if not (folder / _RECORD).is_file():
        return None
    if file:
        return folder / file if _stays_within(file) and (folder / file).is_file() else None
    return next(folder.rglob("*.gguf"), folder)


def fetch(
    name: str,
    models_dir: Path,
    progress: Progress | None = None,
    *,
    revision: str | None = None,
    file: str | None = None,
    before_weights: BeforeWeights | None = None,
) -> Path:
    """Fetch a repository's checkpoint into `models_dir`, unless it is there and intact, and return its folder or GGUF
    file. A fetch that was interrupted is resumed.

    `revision`: branch, tag or commit; None means `main`. `file`: a GGUF file of the repository, as in
    `owner/name:file.gguf`; None means its safetensors with config and tokenizer, or its only GGUF file.
    `before_weights` ends the fetch by raising.

    Raises:
        DownloadError: the hub cannot be reached, or the download broke off.
        FetchError: the hub lacks the repository, revision or file or does not permit the download; the folder has
            another revision or file; a digest differs; the disk is full.
    """
    name, file = _named_file(name, file)
    target = _folder(name, models_dir)
    if target.exists():
        _verify(name, target, revision, file)
    else:
        with _plain_errors(name, revision, models_dir), _unfinished(target) as partial:
            repository = _Repository(name, revision or "main")
            files = _first_files(repository, file)
            texts = [each for each in files if each.name in (*_TEXTS, _INDEX)]
            _download_all(repository, texts, partial, None)
            if files[-1].name == _INDEX:
                files += _shards(repository, partial / _INDEX)
            if before_weights is not None:
                before_weights(partial, sum(each.size_bytes for each in files if each not in texts))
            _download_all(repository, files, partial, progress)
            _tidy(partial, files)
            record = {"revision": repository.revision, "commit": repository.commit}
            digests = {each.name: each.digest for each in files}
            (partial / _RECORD).write_text(json.dumps({**record, "files": digests}, indent=2), encoding="utf-8")
            os.replace(partial, target)
    path = fetched(name, models_dir)
    assert path is not None
    return path


def _named_file(name: str, file: str | None) -> tuple[str, str | None]:
    """The repository of `owner/name` or `owner/name:file`, and its file if one is named here or by `file`.

    Raises:
        FetchError: the name has another form, or names another file.
    """
    repository, colon, named = name.partition(":")
    if not is_repository(repository):
        raise FetchError(f"{name!r} is not the name of a repository, OWNER/NAME")
    if colon and file not in (None, named):
        raise FetchError(f"{name} names another file than {file}")
    return repository, named if colon else file


def _folder(name: str, models_dir: Path) -> Path:
    return models_dir / name.replace("/", "--")


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def _host() -> str:
    """The hub as messages name it: without credentials of its address."""
    return urlsplit(_endpoint()).hostname or "the hub"


class _Repository:
    """One commit of a repository, its listing read from the hub."""

    def __init__(self, name: str, revision: str) -> None:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        self.name = name
        self.revision = revision
        try:
            info = HfApi(endpoint=_endpoint()).model_info(name, revision=revision, files_metadata=True)
        except HfHubHTTPError:
            raise  # which can be a ValueError, too
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DownloadError(f"{_host()} does not answer as a Hugging Face Hub: check HF_ENDPOINT") from error
        self.commit = info.sha or revision
        self.files: dict[str, _File] = {}
        for each in info.siblings or ():
            digest = (each.lfs.sha256 if each.lfs else each.blob_id) or ""
            if _DIGEST.fullmatch(digest) and each.size is not None and _stays_within(each.rfilename):
                self.files[each.rfilename] = _File(each.rfilename, each.size, digest)

    def download(self, file: _File, path: Path, on_bytes: Callable[[int], None]) -> None:
        """Download a file to `path`, resuming the part that is there. `on_bytes`: called with the file's bytes so far.

        Raises:
            FetchError: the content has another digest.
        """
        from huggingface_hub import get_token, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars("huggingface_hub.http_get")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{file.digest[:12]}.part")
        token = get_token()
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = hf_hub_url(self.name, file.name, revision=self.commit, endpoint=_endpoint())
        with _PartFile(part, file, on_bytes) as output:
            http_get(url, output, resume_size=output.tell(), headers=headers, expected_size=file.size_bytes)
            output.flush()
            os.fsync(output.fileno())
        if _digest(part, file.digest) != file.digest:
            part.unlink()
            raise FetchError(
                f"{file.name} of {self.name} arrived with another checksum than the hub states: fetch it again"
            )
        os.replace(part, path)


class _PartFile(io.BufferedWriter):
    """A file that is appended to, up to the size that the hub states.

    Raises:
        FetchError: a write would exceed that size.
    """

    def __init__(self, path: Path, file: _File, on_bytes: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(path, "a"))
        self._file = file
        self._on_bytes = on_bytes

    def write(self, content: Any) -> int:
        if self.tell() + len(content) > self._file.size_bytes:
            raise FetchError(f"{self._file.name} is longer than the hub states: fetch it again")
        written = super().write(content)
        self._on_bytes(self.tell())
        return written


def _stays_within(name: str) -> bool:
    """Whether a file's name is a relative path that leaves no folder."""
    return name.isprintable() and "\\" not in name and not {"", ".", ".."} & set(name.split("/"))


def _first_files(repository: _Repository, file: str | None) -> list[_File]:
    """The files to download: all, or all but the shards that an index names.

    Raises:
        FetchError: there is no such file, nothing that can be served, or a choice to make.
    """
    name, files = repository.name, repository.files
    ggufs = sorted(each for each in files if each.endswith(".gguf"))
    if file is not None:
        if file not in ggufs:
            raise FetchError(f"{name} has no GGUF file {file!r}; it has {', '.join(ggufs) or 'none'}")
        return [files[file]]
    weights = next((each for each in (_SINGLE, _INDEX) if each in files), None)
    if weights is not None:
        if missing := [each for each in _NEEDED if each not in files]:
            raise FetchError(f"{name} has no {' and no '.join(missing)}: it cannot be served")
        return [files[each] for each in (*_TEXTS, weights) if each in files]
    if len(ggufs) > 1:
        raise FetchError(f"{name} has several GGUF files, choose one by --file: {', '.join(ggufs)}")
    if not ggufs:
        raise FetchError(f"{name} has neither {_SINGLE}, nor {_INDEX}, nor a GGUF file: it cannot be served")
    return [files[ggufs[0]]]


def _download_all(repository: _Repository, files: list[_File], folder: Path, progress: Progress | None) -> None:
    """Download the files that `folder` lacks."""
    report: Progress = progress or (lambda *_: None)
    total = sum(file.size_bytes for file in files)
    done = 0
    for file in files:
        path = folder / file.name
        if not path.is_file() or _digest(path, file.digest) != file.digest:

            def on_bytes(count: int, before: int = done) -> None:
                report(before + count, total)

            repository.download(file, path, on_bytes)
        done += file.size_bytes
        report(done, total)


def _shards(repository: _Repository, index: Path) -> list[_File]:
    try:
        stated = json.loads(index.read_bytes())["weight_map"].values()
        return [repository.files[each] for each in sorted(set(stated))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FetchError(f"{_INDEX} of {repository.name} names files that are not there") from error


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """The folder of an unfinished fetch, which no other process uses at the same time."""
    partial = target.with_name(f".fetch-{target.name}")
    partial.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FetchError(f"another process is fetching into {partial}") from error
        yield partial
    finally:
        os.close(descriptor)


def _tidy(folder: Path, files: list[_File]) -> None:
    """Remove what other fetches, of another revision or file, left in the folder."""
    wanted = {folder / each.name for each in files}
    keep = wanted | {parent for path in wanted for parent in path.parents}
    for path in [each for each in folder.rglob("*") if each not in keep]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _verify(name: str, folder: Path, revision: str | None, file: str | None) -> None:
    """
    Raises:
        FetchError: the folder has another revision or file than the wanted one, or was changed.
    """
    try:
        record: Mapping[str, Any] = json.loads((folder / _RECORD).read_bytes())
        digests: Mapping[str, str] = dict(record["files"])
        revisions = (record["revision"], record["commit"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FetchError(f"{folder} is not a fetched checkpoint: remove it, and fetch {name} again") from error
    if (revision is not None and revision not in revisions) or (file is not None and file not in digests):
        raise FetchError(
            f"{folder} has revision {revisions[0]} ({revisions[1][:12]}) with {', '.join(digests)}: "
            f"remove it to fetch another"
        )
    for each, digest in digests.items():
        if not (folder / each).is_file() or _digest(folder / each, digest) != digest:
            raise FetchError(f"{folder / each} is not what was fetched: remove {folder}, and fetch {name} again")


def _digest(path: Path, like: str) -> str:
    """A file's digest, of the kind that `like` is: SHA-256, or the id of Git's blob."""
    if len(like) == hashlib.sha256().digest_size * 2:
        return sha256(path)
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def _plain_errors(name: str, revision: str | None, models_dir: Path) -> Iterator[None]:
    """Turns what the hub's client raises into errors of one line, which repeat none of its headers or addresses."""
    import httpx2
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled, RevisionNotFoundError

    host = _host()
    try:
        yield
    except GatedRepoError as error:
        raise FetchError(_gated(name, host)) from error
    except RevisionNotFoundError as error:
        raise FetchError(f"{name} has no revision {revision!r} on {host}") from error
    except HfHubHTTPError as error:
        raise _refused(name, host, error.response.status_code) from error
    except OfflineModeIsEnabled as error:
        raise DownloadError(f"{name} cannot be fetched: HF_HUB_OFFLINE is set") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = type(error).__name__
        raise DownloadError(f"{name} could not be fetched from {host} ({reason}): fetch again to resume") from error
    except OSError as error:
        if error.strerror is None:  # the client's own, of a file that ended early
            raise DownloadError(f"the download of {name} from {host} broke off: fetch again to resume") from error
        raise FetchError(f"{name} could not be stored in {models_dir}: {error.strerror}") from error


def _gated(name: str, host: str) -> str:
    return f"{name} is gated: accept its terms on {host}, and set HF_TOKEN to a token that may read it"


def _refused(name: str, host: str, status: int) -> FetchError:
    if status in (401, 404):
        return FetchError(
            f"{host} has no model {name}, or not for this HF_TOKEN ({status}): "
            "check the name, and set HF_TOKEN for a private model"
        )
    if status == 403:
        return FetchError(_gated(name, host))
    return DownloadError(f"{name} could not be fetched: {host} answers {status}; fetch again to resume")
