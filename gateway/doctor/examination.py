"""Runs all checks in order."""

from dataclasses import replace

from gateway.config.settings import Settings
from gateway.doctor import files, machine, models, safety
from gateway.doctor.clickhouse import clickhouse
from gateway.doctor.database import database
from gateway.doctor.finding import Check, Finding
from gateway.doctor.grpc import grpc
from gateway.doctor.kafka import kafka
from gateway.doctor.redis import redis
from gateway.doctor.upstreams import upstreams
from gateway.doctor.workers import workers
from gateway.telemetry.redaction import Redactor

CHECKS: tuple[Check, ...] = (
    machine.torch,
    machine.packages,
    machine.package_names,
    machine.cpu,
    machine.gpu,
    machine.compiler,
    machine.native_kernels,
    machine.huge_pages,
    machine.open_files,
    models.models,
    upstreams,
    workers,
    models.service_classes,
    files.data_dir,
    files.pepper,
    safety.secret_files,
    safety.encryption,
    database,
    redis,
    files.journal,
    kafka,
    clickhouse,
    files.port,
    grpc,
    safety.address,
    safety.processes,
)


def examine(settings: Settings) -> list[Finding]:
    """The findings of all checks. Secrets of the settings are redacted, also in messages from servers."""
    redact = Redactor(settings.secret_values()).text
    return [
        replace(found, detail=redact(found.detail), remedy=redact(found.remedy))
        for check in CHECKS
        for found in check(settings)
    ]
