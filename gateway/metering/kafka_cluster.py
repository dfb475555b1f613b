"""A Kafka cluster by URL, and its clients with bounded timeouts.

kafka-python's clients block, so they are made and used on their own thread (`Worker`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from gateway.errors import OperatorError
from gateway.extras import require
from gateway.urls import StoreUrl

SCHEMES = {"kafka": "PLAINTEXT", "kafkas": "SSL"}
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
DEFAULT_PORT = 9092
BOOTSTRAP_TIMEOUT_MS = 5_000
FORM = "kafka://[user:password@]host[:port][,host[:port]...], or kafkas:// for TLS"


class KafkaFailed(OperatorError):
    """Kafka is unavailable or rejected a command."""


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """`options`: arguments of every client. They may include a password and are not part of the repr."""

    servers: tuple[str, ...]
    options: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """`?sasl=SCRAM-SHA-512` selects the SASL mechanism; the default is PLAIN.

        Raises:
            ValueError: an invalid URL. The message does not contain it.
        """
        parts = StoreUrl.split(url)
        security = SCHEMES.get(parts.scheme)
        query = parse_qs(parts.query)
        if security is None or not parts.hosts or parts.path.strip("/") or set(query) - {"sasl"}:
            raise ValueError(f"must be a {FORM} URL")
        options: dict[str, Any] = {"security_protocol": security}
        if parts.user or parts.password:
            mechanism = query.get("sasl", ["PLAIN"])[0].upper()
            if mechanism not in SASL_MECHANISMS:
                raise ValueError(f"sasl must be one of {', '.join(SASL_MECHANISMS)}")
            options |= {
                "security_protocol": "SASL_" + security,
                "sasl_mechanism": mechanism,
                "sasl_plain_username": unquote(parts.user),
                "sasl_plain_password": unquote(parts.password),
            }
        return cls(tuple(map(_server, parts.hosts)), options)

    @classmethod
    def open(cls, url: str) -> Self:
        """The cluster at a valid URL, for clients.

        Raises:
            MissingExtra: Kafka's client is not installed.
        """
        require("kafka", "kafka_url")
        return cls.from_url(url)

    def connect(self, client: Callable[..., Any], **options: Any) -> Any:
        """Make one of kafka-python's clients. Blocks for at most `BOOTSTRAP_TIMEOUT_MS`.

        Raises:
            kafka.errors.KafkaError: no broker answers, or authentication failed.
        """
        from kafka.net.compat import KafkaNetClient

        networks: list[Any] = []

        def network(**configuration: Any) -> Any:
            networks.append(KafkaNetClient(**configuration))
            return networks[-1]

        try:
            return client(
                **self.options,
                bootstrap_servers=list(self.servers),
                bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
                kafka_client=network,
                **options,
            )
        except BaseException:
            for each in networks:  # a failed constructor leaks its sockets and its thread
                each.close()
            raise

    def create_topic(self, topic: str, *, partitions: int, replication: int) -> bool:
        """Create a topic; False if it exists, with any number of partitions. Blocks.

        Raises:
            KafkaFailed: the topic could not be created.
        """
        from kafka.admin import KafkaAdminClient
        from kafka.errors import KafkaError, TopicAlreadyExistsError

        try:
            admin = self.connect(KafkaAdminClient)
            try:
                admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": replication}})
                admin.wait_for_topics([topic])
            finally:
                admin.close()
        except TopicAlreadyExistsError:
            return False
        except KafkaError as error:
            raise KafkaFailed(f"the topic {topic} could not be created: {error}") from error
        return True


def _server(host: str) -> str:
    """`host:port`; the host may be an IPv6 address in brackets."""
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise ValueError(f"must be a {FORM} URL") from None
    if not parts.hostname:
        raise ValueError(f"must be a {FORM} URL")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{name}:{port}"
