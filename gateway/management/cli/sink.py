"""turnpike sink, turnpike kafka"""

import asyncio
from typing import Annotated

import typer

from gateway.management.cli.options import DataDir, settings_from


def sink(
    member: Annotated[
        str | None,
        typer.Option(
            "--member",
            metavar="NAME",
            help="Static member name, kept over restarts: after a crash the sink gets its partitions back at once.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", metavar="PORT", help="Port of the Prometheus metrics; 0 disables them. [default: 9464]"
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Copy usage from Kafka to ClickHouse until SIGTERM or Ctrl-C. Any number of sinks share the work."""
    from gateway.process.sink_service import run_sink
    from gateway.telemetry.logs import configure_logging

    settings = settings_from(data_dir=data_dir, sink_metrics_port=metrics_port)
    configure_logging(settings.log_level, settings.log_format, settings.secret_values())
    asyncio.run(run_sink(settings, member=member))


def create_topic(
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", min=1, help="Number of partitions: the maximum number of sinks that share the work."
        ),
    ] = 8,
    replication: Annotated[
        int, typer.Option("--replication", min=1, help="Number of brokers that store each message.")
    ] = 1,
    data_dir: DataDir = None,
) -> None:
    """Create the topic of usage events if it does not exist."""
    from gateway.errors import OperatorError
    from gateway.metering.kafka_cluster import KafkaCluster

    settings = settings_from(data_dir=data_dir)
    if settings.kafka_url is None:
        raise OperatorError("kafka_url is not set")
    cluster = KafkaCluster.open(settings.kafka_url.get_secret_value())
    created = cluster.create_topic(settings.kafka_topic, partitions=partitions, replication=replication)
    typer.echo(f"{'created' if created else 'there was already'} the topic {settings.kafka_topic}")
