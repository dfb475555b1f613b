"""What this machine has of what Turnpike needs. Looks only: makes no file and changes nothing."""

import asyncio
import contextlib
import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import migrations
from engine.models.catalog import available
from gateway.api.service_classes import engine_classes_of
from gateway.catalog import DEFAULT_MODEL
from gateway.errors import OperatorError
from gateway.listener import bind
from gateway.service_classes import unserved_tiers
from gateway.settings import Settings
from gateway.tenancy import TenantStore, load_pepper, open_database
from gateway.tenancy.pepper import pepper_path
from gateway.tenancy.schema import current_revision
from gateway.tenancy.tiers import count_tenants_by_tier

_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16")
"""What the CPU kernels can make use of (x86, then Arm)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`missing`: Turnpike cannot serve without it. `absent`: it can. `remedy` says how to get it."""

    what: str
    state: Literal["ok", "absent", "missing"]
    detail: str
    remedy: str = ""


def examine(settings: Settings) -> list[Finding]:
    checks: tuple[Callable[[Settings], Finding], ...] = (
        _torch,
        _cpu,
        _compiler,
        _triton,
        _cuda,
        _data_dir,
        _pepper,
        _database,
        _service_classes,
        _models,
        _port,
    )
    return [check(settings) for check in checks]


def _torch(_: Settings) -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding("torch", "missing", str(error), "pip install torch")
    threads = torch.get_num_threads()
    return Finding("torch", "ok", f"{torch.__version__} on Python {platform.python_version()}, {threads} threads")


def _cpu(_: Settings) -> Finding:
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        words = set()
    flags = " ".join(flag for flag in _CPU_FLAGS if flag in words) or "none of the vector extensions that we know"
    return Finding("CPU", "ok", f"{os.cpu_count()} cores, {flags}")


def _compiler(_: Settings) -> Finding:
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return Finding("C++ compiler", "ok", path)
    return Finding("C++ compiler", "absent", "none on the PATH", "apt-get install --no-install-recommends g++")


def _triton(_: Settings) -> Finding:
    if importlib.util.find_spec("triton") is not None:
        return Finding("Triton", "ok", "installed")
    return Finding("Triton", "absent", "not installed; only GPUs need it", "pip install 'turnpike[gpu]'")


def _cuda(_: Settings) -> Finding:
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            return Finding("CUDA", "ok", torch.cuda.get_device_name(0))
    return Finding("CUDA", "absent", "no GPU that torch can use: models run on the CPU")


def _data_dir(settings: Settings) -> Finding:
    """Judged by the nearest folder that exists, as the rest is made on first use."""
    folder = settings.data_dir
    while not folder.exists():
        folder = folder.parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return Finding("data directory", "ok", str(settings.data_dir))
    return Finding("data directory", "missing", f"{folder} is not a writable folder", "pass --data-dir DIR")


def _pepper(settings: Settings) -> Finding:
    path = pepper_path(settings)
    if settings.key_pepper is not None:
        return Finding("pepper", "ok", "from the settings")
    if not path.exists():
        return Finding("pepper", "ok", f"made on first use, in {path}")
    try:
        load_pepper(settings)
    except OperatorError as error:
        return Finding("pepper", "missing", str(error), "or set TURNPIKE_KEY_PEPPER")
    shared = settings.database_url.get_secret_value().startswith("postgresql")
    return Finding("pepper", "ok", f"{path}{'; other replicas need it in TURNPIKE_KEY_PEPPER' if shared else ''}")


def _database(settings: Settings) -> Finding:
    url = settings.database_url.get_secret_value()
    kind, _, rest = url.partition("+")
    if kind == "sqlite":
        path = Path(rest.partition(":///")[2].partition("?")[0])
        if not path.exists():
            return Finding("database", "ok", f"SQLite, made on first use, in {path}")
    try:
        return asyncio.run(_database_contents(settings, kind))
    except OperatorError as error:
        return Finding("database", "missing", f"{kind}: {error}", "start it, or set TURNPIKE_DATABASE_URL")


async def _database_contents(settings: Settings, kind: str) -> Finding:
    database = open_database(settings.database_url.get_secret_value())
    try:
        revision = await current_revision(database)
        if revision != migrations.HEAD:
            detail = f"{kind}, at revision {revision or 'none'}, not {migrations.HEAD}"
            return Finding("database", "absent", detail, "turnpike db upgrade; turnpike serve does it too")
        if settings.key_pepper is not None or pepper_path(settings).exists():
            strangers = await TenantStore(database, load_pepper(settings)).count_keys_of_other_peppers()
            if strangers:
                detail = f"{kind}, up to date, but {strangers} keys were made under another pepper and are refused"
                return Finding("database", "absent", detail, "set TURNPIKE_KEY_PEPPER to that one, or make new keys")
        unserved = unserved_tiers(settings.service_classes, await count_tenants_by_tier(database))
        if unserved:
            tiers = ", ".join(f"{tier} ({count})" for tier, count in unserved.items())
            detail = f"{kind}, up to date, but tenants have tiers that are no service class and are refused: {tiers}"
            return Finding("database", "absent", detail, "add the class to service_classes, or change their tier")
        return Finding("database", "ok", f"{kind}, up to date")
    finally:
        await database.dispose()


def _service_classes(settings: Settings) -> Finding:
    classes = [
        f"{each.name} (priority {each.priority}, {each.reserved_fraction:.0%} reserved)"
        for each in engine_classes_of(settings)
    ]
    return Finding("service classes", "ok", f"from the highest: {', '.join(classes)}")


def _models(settings: Settings) -> Finding:
    gone = [f"{name} ({path})" for name, path in settings.models.items() if not path.exists()]
    if gone:
        return Finding("models", "missing", f"there is no {', '.join(gone)}", "correct [models] in turnpike.toml")
    if settings.models:
        return Finding("models", "ok", ", ".join(settings.models))
    if any(entry.name == DEFAULT_MODEL and entry.fetched for entry in available(settings.models_dir)):
        return Finding("models", "ok", f"{DEFAULT_MODEL}, in {settings.models_dir}")
    return Finding(
        "models",
        "absent",
        f"{DEFAULT_MODEL} is not fetched yet",
        f"turnpike models fetch {DEFAULT_MODEL}; serve does it too",
    )


def _port(settings: Settings) -> Finding:
    try:
        bind(settings.host, settings.port).close()
    except OperatorError as error:
        return Finding("port", "missing", str(error), "pass --port to turnpike serve, or set TURNPIKE_PORT")
    return Finding("port", "ok", f"{settings.port} on {settings.host} is free")
