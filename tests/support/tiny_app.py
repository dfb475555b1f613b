"""The application over the real engine and a tiny model, on one thread."""

from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from engine.config import EngineConfig
from engine.engine import Engine
from gateway.app import create_app
from gateway.config.settings import Settings
from tests.support.gateway import FakeAuthenticator
from tests.support.services import services_with
from tests.support.tiny_models import make_checkpoint


def tiny_engine(folder: Path) -> Engine:
    """An engine that serves the checkpoint in `folder` as `tiny`."""
    return Engine.load({"tiny": folder}, EngineConfig(dtype="float32", kv_cache_bytes=4 * 2**20, threads=1))


def tiny_app(folder: Path, **services: Any) -> Starlette:
    """The application over a checkpoint that is made in `folder`, with fake keys and `services` of a test."""
    checkpoint = make_checkpoint(folder, "llama")
    made = services_with(checkpoint, tiny_engine(checkpoint), FakeAuthenticator(), **services)
    return create_app(Settings(data_dir=checkpoint / "data"), made)
