"""The parts that accept an adapter: the folder of files, the base models, the check and the bounds."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from engine.adapters.source import AdapterFacts
from gateway.adapters.errors import InvalidAdapter, UnsupportedAdapterFiles
from gateway.adapters.files import AdapterFiles
from gateway.adapters.limits import AdapterLimits


class AdapterCheck(Protocol):
    """`engine.adapters.checker.check_adapter`, or a stand-in."""

    def __call__(self, folder: Path, model: Path, *, max_rank: int, max_bytes: int) -> Awaitable[AdapterFacts]:
        """Check a PEFT folder against the checkpoint of its base model.

        Raises:
            ValueError: the files cannot be served; the message names the field or the tensor.
        """
        ...


async def _engine_check(folder: Path, model: Path, *, max_rank: int, max_bytes: int) -> AdapterFacts:
    """The engine's check, imported when an adapter comes: it loads what reads checkpoints."""
    from engine.adapters.checker import check_adapter

    return await check_adapter(folder, model, max_rank=max_rank, max_bytes=max_bytes)


@dataclass(frozen=True, slots=True)
class AdapterHosting:
    """`models`: checkpoints of the served models that take adapters, by name. `is_taken`: whether a name leads to a
    served model, for all tenants. `max_bytes`: of one adapter's files. `limits`: of a tenant that has none of its own.
    `roots`: folders from which an administrator may load adapters by path."""

    files: AdapterFiles
    models: Mapping[str, Path]
    is_taken: Callable[[str], bool]
    max_rank: int
    max_bytes: int
    limits: AdapterLimits
    roots: tuple[Path, ...] = ()
    check: AdapterCheck = field(default=_engine_check, repr=False)

    def base_model(self, stated: str | None) -> str:
        """The base model of a new adapter. `stated`: what the request says; None: the only one there is.

        Raises:
            InvalidAdapter: it takes no adapters, or there are several.
        """
        if stated is None and len(self.models) == 1:
            return next(iter(self.models))
        if stated is None or stated not in self.models:
            names = ", ".join(self.models) or "none"
            raise InvalidAdapter(f"the model must be one of the served models that take adapters: {names}", "model")
        return stated

    async def examine(self, folder: Path, model: str) -> AdapterFacts:
        """Check an adapter's files against its base model.

        Raises:
            UnsupportedAdapterFiles: they cannot be served.
            InvalidAdapter: the base model is not served any more.
        """
        checkpoint = self.models[self.base_model(model)]
        try:
            return await self.check(folder, checkpoint, max_rank=self.max_rank, max_bytes=self.max_bytes)
        except ValueError as error:
            raise UnsupportedAdapterFiles(" ".join(str(error).split())[:500], "files") from error

    def resolve(self, path: str) -> Path:
        """A folder below one of `roots`, with symbolic links resolved. `path` is relative to a root, or absolute and
        below one.

        Raises:
            InvalidAdapter: there are no roots, or it is below none or no folder.
        """
        if not self.roots:
            raise InvalidAdapter("no folder is open to loading by path: set roots in [adapters]", "path")
        for root in self.roots:
            try:
                home, folder = root.resolve(strict=True), (root / path).resolve(strict=True)
            except (OSError, RuntimeError, ValueError):
                continue
            if folder.is_relative_to(home) and folder != home and folder.is_dir():
                return folder
        raise InvalidAdapter("there is no such folder below the roots of [adapters]", "path")
