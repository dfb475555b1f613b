"""Checks Kafka, which transports usage to sinks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.config.settings import Settings
from gateway.doctor.finding import Finding, failure, ok, warning
from gateway.extras import install, is_installed
from gateway.metering.kafka_cluster import KafkaCluster


def kafka(settings: Settings) -> Iterator[Finding]:
    """Blocks for as long as `KafkaCluster.connect` may."""
    if settings.kafka_url is None:
        yield ok("Kafka", "not set: usage goes to ClickHouse directly")
        return
    if not is_installed("kafka"):
        yield failure("Kafka", "kafka_url is set, and its client is not installed", install("kafka"))
        return
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    cluster = KafkaCluster.from_url(settings.kafka_url.get_secret_value())
    try:
        admin = cluster.connect(KafkaAdminClient)
        try:
            brokers = admin.describe_cluster()["brokers"]
            topics = admin.describe_topics([settings.kafka_topic])
        finally:
            admin.close()
    except KafkaError as error:
        remedy = "start it, or correct TURNPIKE_KAFKA_URL; until then usage waits in the journal"
        yield failure("Kafka", f"does not answer as it should ({type(error).__name__})", remedy)
        return
    partitions = [part for topic in topics if not topic.get("error_code") for part in topic["partitions"]]
    yield judged(len(brokers), settings.kafka_topic, partitions)


def judged(brokers: int, topic: str, partitions: Sequence[Mapping[str, Any]]) -> Finding:
    """`partitions`: Kafka's descriptions; empty if the topic does not exist."""
    here = f"{brokers} {'broker' if brokers == 1 else 'brokers'}"
    if not partitions:
        return failure("Kafka", f"{here}, but there is no topic {topic}", "turnpike kafka create-topic")
    leaderless = sum(part["leader_id"] < 0 for part in partitions)
    if leaderless:
        detail = f"{here}, but {leaderless} of {topic}'s {len(partitions)} partitions have no leader"
        return failure("Kafka", detail, "start the brokers that hold them")
    behind = sum(len(part["isr_nodes"]) < len(part["replica_nodes"]) for part in partitions)
    if behind:
        detail = f"{here}, but {behind} of {topic}'s {len(partitions)} partitions lack replicas"
        return warning("Kafka", detail, "start the brokers that are down")
    copies = min(len(part["replica_nodes"]) for part in partitions)
    return ok("Kafka", f"{here}; {topic} has {len(partitions)} partitions, {copies} times each")
