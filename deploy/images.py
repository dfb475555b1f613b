"""The images that an installation runs: which they are, whether the files agree, whether registries have them.

    python -m deploy.images                                 list them, and check that the files agree
    python -m deploy.images --registry https://HOST         look up each tag, and check the digests in the files
    python -m deploy.images --registry https://HOST --pin   write digests into docker-compose.yml and the Dockerfile

`--registry` is where images come from whose name has no host, and needs no account. The protocol is that of the OCI
distribution specification (https://github.com/opencontainers/distribution-spec).
"""

import argparse
import json
import re
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

ROOT = Path(__file__).parents[1]
COMPOSE, DOCKERFILE = "docker-compose.yml", "Dockerfile"
KUSTOMIZE, HELM = "deploy/kubernetes", "deploy/helm/turnpike"
PINNED_FILES = (COMPOSE, DOCKERFILE)
"""Ours has its digest once it was pushed: an overlay, or the chart's values, state it then."""
OURS = "turnpike"
TIMEOUT_S = 20
_REFERENCE = re.compile(r"^(?P<repository>[^@\s]+?):(?P<tag>[^:@/\s]+)(?:@(?P<digest>sha256:[0-9a-f]{64}))?$")
_FULL_VERSION = re.compile(r"v?\d+\.\d+")
_MANIFESTS = ", ".join(
    f"application/vnd.{each}+json"
    for each in (
        "oci.image.index.v1",
        "docker.distribution.manifest.list.v2",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.v2",
    )
)


class RegistryError(Exception):
    """A registry does not say what a tag is; the message names the image."""


@dataclass(frozen=True, slots=True)
class Image:
    """`repository` as the files have it, `digest` as they state it."""

    repository: str
    tag: str
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Image":
        """
        Raises:
            ValueError: there is no tag.
        """
        match = _REFERENCE.match(text)
        if match is None:
            raise ValueError(f"{text}: an image has to state its tag")
        return cls(match["repository"], match["tag"], match["digest"])

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}" + (f"@{self.digest}" if self.digest else "")


def images_of(root: Path = ROOT) -> list[tuple[str, Image]]:
    """Each image with the file that names it, once a file."""
    found = [(COMPOSE, text) for text in _stated(_documents(root / COMPOSE))]
    text = (root / DOCKERFILE).read_text(encoding="utf-8")
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)
    made = {name for _, name in stages}
    found += [(DOCKERFILE, base) for base, _ in stages if base not in made]
    for path in sorted((root / KUSTOMIZE).rglob("*.yaml")):
        found += [(str(path.relative_to(root)), text) for text in _stated(_documents(path))]
    (chart,), (values,) = _documents(root / HELM / "Chart.yaml"), _documents(root / HELM / "values.yaml")
    version = values["image"]["tag"] or chart["appVersion"]
    found += [(HELM, f"{values['image']['repository']}:{tag}") for tag in (version, f"{version}-gpu")]
    return [(file, Image.parse(text)) for file, text in dict.fromkeys(found)]


def disagreements(images: Sequence[tuple[str, Image]], version: str) -> list[str]:
    """Contradictions between the files, and tags that are no full version."""
    found = []
    stated: dict[str, set[str]] = {}
    for file, image in images:
        if image.repository == OURS and image.tag.removesuffix("-gpu") != version:
            found.append(f"{file}: {image} is not of this version, {version}")
        if not _FULL_VERSION.match(image.tag):
            found.append(f"{file}: {image} is no full version")
        if image.repository != OURS:
            stated.setdefault(image.repository, set()).add(str(image))
    found += [
        f"{name} is named differently: {', '.join(sorted(each))}" for name, each in stated.items() if len(each) > 1
    ]
    return found


def digest_of(image: Image, registry: str) -> str:
    """Look up the digest that the tag has now.

    Raises:
        RegistryError: the registry does not answer, or has no such tag.
    """
    base, name = _place(image.repository, registry)
    url = f"{base}/v2/{name}/manifests/{image.tag}"
    try:
        try:
            digest = _asked(url, None)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            digest = _asked(url, _token(error.headers.get("www-authenticate", "")))
    except urllib.error.HTTPError as error:
        reason = "is not there" if error.code == 404 else f"cannot be looked up: status {error.code}"
        raise RegistryError(f"{image.repository}:{image.tag} {reason}") from None
    except (OSError, ValueError) as error:
        raise RegistryError(f"{image.repository}:{image.tag} cannot be looked up: {error}") from None
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise RegistryError(f"{image.repository}:{image.tag} has no digest at its registry")
    return digest


def pin(images: Sequence[Image], root: Path = ROOT) -> None:
    """Write the digests of `images` behind their tags."""
    for file in PINNED_FILES:
        text = (root / file).read_text(encoding="utf-8")
        for image in images:
            tagged = re.escape(f"{image.repository}:{image.tag}")
            text = re.sub(rf"(?<![\w./-]){tagged}(@sha256:[0-9a-f]{{64}})?(?![\w.@-])", str(image), text)
        (root / file).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="The images that an installation runs.")
    parser.add_argument("--registry", metavar="URL", help="where images come from whose name has no host")
    parser.add_argument("--pin", action="store_true", help="write digests into docker-compose.yml and the Dockerfile")
    options = parser.parse_args(arguments)
    if options.pin and not options.registry:
        parser.error("--pin needs --registry")
    images = images_of(root)
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    problems = disagreements(images, version)
    for file, image in images:
        print(f"{image}  {file}")
    resolved = []
    if options.registry:
        for image in dict.fromkeys(image for _, image in images if image.repository != OURS):
            try:
                digest = digest_of(image, options.registry.rstrip("/"))
            except RegistryError as error:
                problems.append(str(error))
                continue
            resolved.append(replace(image, digest=digest))
            print(f"{image.repository}:{image.tag} is {digest}")
            if image.digest not in {None, digest} and not options.pin:
                problems.append(f"{image}: its tag is {digest} now; look at what has changed, then --pin")
    for problem in problems:
        print(problem, file=sys.stderr)
    if options.pin and not problems:
        pin(resolved, root)
    return 1 if problems else 0


def _documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def _stated(node: Any) -> Iterator[str]:
    """The values of all keys `image`."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "image" and isinstance(value, str):
                yield value
            else:
                yield from _stated(value)
    elif isinstance(node, list):
        for each in node:
            yield from _stated(each)


def _place(repository: str, registry: str) -> tuple[str, str]:
    """The registry's address, and the name there: a first part with a dot or a port is a host."""
    host, slash, rest = repository.partition("/")
    if slash and re.search(r"[.:]|^localhost$", host):
        return f"https://{host}", rest
    return registry, repository if slash else f"library/{repository}"


def _asked(url: str, token: str | None) -> str:
    headers = {"Accept": _MANIFESTS} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, headers=headers, method="HEAD")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return str(answer.headers.get("docker-content-digest", ""))


def _token(challenge: str) -> str:
    """An anonymous one, from where the registry sends its clients."""
    stated = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = stated.pop("realm", "")
    if not realm.startswith(("http://", "https://")):
        raise ValueError("it wants another login than a token")
    try:
        with urllib.request.urlopen(f"{realm}?{urlencode(stated)}", timeout=TIMEOUT_S) as answer:
            given = json.load(answer)
    except urllib.error.HTTPError as error:
        raise ValueError(f"it gives no token: status {error.code}") from None
    token = given.get("token") or given.get("access_token")
    if not isinstance(token, str):
        raise ValueError("it gives no token")
    return token


if __name__ == "__main__":
    sys.exit(main())
