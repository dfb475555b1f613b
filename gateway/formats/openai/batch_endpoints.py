"""Wires batches: the endpoints of files and batches, those that lines call, and the runner."""

from collections.abc import Mapping
from dataclasses import replace

from gateway.batches.batches import Batches
from gateway.batches.line_call import LineCaller
from gateway.batches.line_log import LineLog
from gateway.batches.line_run import LineRunner
from gateway.batches.metrics import BatchMetrics
from gateway.batches.runner import BatchRunner
from gateway.config.settings import Settings
from gateway.files.store import FileStore
from gateway.formats.openai.batches import ManyBatches, OneBatch
from gateway.formats.openai.chat import CHAT
from gateway.formats.openai.completions import COMPLETIONS
from gateway.formats.openai.embeddings import EmbeddingsEndpoint
from gateway.formats.openai.file_upload import UploadFile
from gateway.formats.openai.files import FileContent, Files, OneFile
from gateway.formats.openai_responses.endpoint import RESPONSES
from gateway.generation.endpoint import GenerationEndpoint
from gateway.generation.services import Services
from gateway.generation.stages import Stages
from gateway.http import access
from gateway.http.access import Endpoint
from gateway.http.middleware import refusal_of
from gateway.tenancy.grants import KeyScope


def batch_endpoints(
    files: FileStore, batches: Batches, settings: Settings, of_lines: Mapping[str, Endpoint]
) -> list[Endpoint]:
    """The endpoints of files and batches. `of_lines`: those that lines call."""
    upload = UploadFile(files, settings.files.max_bytes, min(settings.files.max_bytes, settings.batches.max_bytes))
    many = ManyBatches(batches, files, of_lines, settings.max_json_depth)
    scopes = access.GENERATION
    return [
        Endpoint("/v1/files", ["GET", "POST"], scopes, Files(files, upload)),
        Endpoint("/v1/files/{id}", ["GET", "DELETE"], scopes, OneFile(files, batches.store.is_input)),
        Endpoint("/v1/files/{id}/content", ["GET"], scopes, FileContent(files)),
        Endpoint("/v1/batches", ["GET", "POST"], scopes, many),
        Endpoint("/v1/batches/{id}", ["GET"], scopes, OneBatch(batches)),
        Endpoint("/v1/batches/{id}/cancel", ["POST"], scopes, OneBatch(batches, cancels=True)),
    ]


def line_endpoints(services: Services, settings: Settings, log: LineLog) -> dict[str, Endpoint]:
    """The endpoints that lines call, by path: in the class of batches, with the usage log of lines.

    Raises:
        UnknownClass: the settings name a class of batches that does not exist.
    """
    stages = Stages.of(replace(services, usage_log=log), settings)
    stages = replace(stages, classes=stages.classes.only(settings.batches.service_class))
    endpoints = (
        Endpoint("/v1/chat/completions", ["POST"], access.CHAT, GenerationEndpoint(CHAT, stages)),
        Endpoint(
            "/v1/completions", ["POST"], frozenset({KeyScope.COMPLETIONS}), GenerationEndpoint(COMPLETIONS, stages)
        ),
        Endpoint("/v1/responses", ["POST"], access.CHAT, GenerationEndpoint(RESPONSES, stages)),
        Endpoint("/v1/embeddings", ["POST"], frozenset({KeyScope.EMBEDDINGS}), EmbeddingsEndpoint(stages)),
    )
    return {each.path: each for each in endpoints}


def open_runner(
    services: Services, files: FileStore, batches: Batches, endpoints: Mapping[str, Endpoint], log: LineLog
) -> BatchRunner:
    """The runner of this process. The application starts and closes it."""
    metrics = BatchMetrics()
    services.metrics.registry.register(metrics)
    lines = LineRunner(LineCaller(endpoints, refusal_of), log, services.refusals.record)
    return BatchRunner(batches, files, lines, metrics, lambda: services.drain.begun)
