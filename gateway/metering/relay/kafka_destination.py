"""Kafka as the relay's destination."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from gateway.metering.journal.journal_file import JournalRow
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.relay.destination import DestinationAway, DestinationRefused
from gateway.metering.signature import HEADER, EventSigner
from gateway.metering.worker import Worker

if TYPE_CHECKING:
    from kafka import KafkaProducer

MAX_BLOCK_MS = 5_000
REQUEST_TIMEOUT_MS = 5_000
DELIVERY_TIMEOUT_MS = 15_000
"""Longer than a broker's restart, after which its records arrive in order and once."""
BATCH_BYTES = 256 * 1024
CLIENT_LINGER_MS = 5


class KafkaDestination:
    """Rows become messages. The key is the tenant, which keeps a tenant's events in order. The value is the event's
    JSON, and a header has its signature.

    The producer is idempotent and waits for all in-sync replicas. After a failure it is discarded with its pending
    records, and the relay delivers the same rows again. All calls run on one thread; a delivery takes at most the sum
    of the timeouts above.
    """

    linger_ms = 0

    def __init__(self, cluster: KafkaCluster, topic: str, signer: EventSigner) -> None:
        self._cluster = cluster
        self._topic = topic
        self._signer = signer
        self._producer: KafkaProducer | None = None
        self._worker = Worker("kafka-producer")

    async def deliver(self, rows: Sequence[JournalRow]) -> None:
        """
        Raises:
            DestinationAway
            DestinationRefused: the topic's name, missing rights or the size of a message.
        """
        await self._worker.call(self._deliver, rows)

    async def aclose(self) -> None:
        # Not awaited: without a broker the thread may hang until its timeouts.
        self._worker.post(self._discard)
        self._worker.end()

    def _deliver(self, rows: Sequence[JournalRow]) -> None:
        from kafka.errors import KafkaError

        try:
            self._send(rows)
        except KafkaError as error:
            self._discard()
            failure = DestinationRefused if isinstance(error, _refusals()) else DestinationAway
            raise failure(f"Kafka does not take what goes to the topic {self._topic}: {error}") from error
        except BaseException:
            self._discard()
            raise

    def _send(self, rows: Sequence[JournalRow]) -> None:
        producer = self._connected()
        sent = [
            producer.send(
                self._topic,
                key=orjson.loads(row.body)["tenant_id"].encode(),
                value=row.body,
                headers=[(HEADER, self._signer.sign_json(row.body).encode())],
            )
            for row in rows
        ]
        producer.flush(timeout=(DELIVERY_TIMEOUT_MS + REQUEST_TIMEOUT_MS) / 1000)
        for each in sent:
            each.get(timeout=0)

    def _connected(self) -> "KafkaProducer":
        if self._producer is None:
            from kafka import KafkaProducer

            self._producer = self._cluster.connect(
                KafkaProducer,
                enable_idempotence=True,
                acks="all",
                max_block_ms=MAX_BLOCK_MS,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
                reconnect_backoff_max_ms=1_000,
                batch_size=BATCH_BYTES,
                linger_ms=CLIENT_LINGER_MS,
                allow_auto_create_topics=False,
            )
        return self._producer

    def _discard(self) -> None:
        from kafka.errors import KafkaError

        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError):
                producer.close(timeout=0)
                return
            producer._sender.force_close()  # `close` raises before this if records are pending


def _refusals() -> tuple[Any, ...]:
    from kafka import errors

    return (
        errors.AuthorizationError,
        errors.SaslAuthenticationFailedError,
        errors.UnsupportedSaslMechanismError,
        errors.InvalidTopicError,
        errors.UnknownTopicOrPartitionError,
        errors.MessageSizeTooLargeError,
        errors.RecordListTooLargeError,
    )
