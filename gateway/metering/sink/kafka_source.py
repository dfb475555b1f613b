"""Kafka as the sink's source."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.signature import HEADER
from gateway.metering.sink.intake import Message
from gateway.metering.sink.message_source import Fetched, Partition, SourceAway
from gateway.metering.worker import Worker

if TYPE_CHECKING:
    from kafka import KafkaConsumer

FETCH_TIMEOUT_MS = 100
FETCH_MESSAGES = 2_000
FETCH_BYTES = 8 * 1024**2
REQUEST_TIMEOUT_MS = 10_000
COMMIT_TIMEOUT_MS = 10_000
END_OFFSETS_TIMEOUT_MS = 2_000
CLOSE_TIMEOUT_MS = 2_000
METADATA_MS = 5_000
"""Interval at which the client refreshes the topic's partitions."""

T = TypeVar("T")


class KafkaSource:
    """A consumer of one topic, on its own thread. It is created on first use, and again after a failure.

    `member`: makes it a static group member, which gets its partitions back at once if it restarts within the session
    timeout (45 s). A dynamic member that was killed keeps its partitions until the timeout.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str,
        *,
        group: str,
        member: str | None = None,
        heartbeat_ms: int = 3_000,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._identity = {"group_id": group, "group_instance_id": member, "heartbeat_interval_ms": heartbeat_ms}
        self._consumer: KafkaConsumer | None = None
        self._worker = Worker("kafka-consumer")
        self._closed = False

    async def fetch(self, *, more: bool) -> Fetched:
        return await self._worker.call(self._safely, lambda consumer: _poll(consumer, more=more))

    async def behind(self) -> Mapping[Partition, int]:
        return await self._worker.call(self._safely, _behind)

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        await self._worker.call(self._safely, lambda consumer: _commit(consumer, offsets))

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._worker.call(self._discard)
            self._worker.end()

    def _safely(self, action: "Callable[[KafkaConsumer], T]") -> T:
        from kafka.errors import KafkaError

        try:
            return action(self._connected())
        except KafkaError as error:
            if not _keeps_its_place(error):
                self._discard()
            raise SourceAway(f"Kafka does not give the topic {self._topic}: {error}") from error
        except Exception as error:  # a bug in the client: make a new one
            self._discard()
            raise SourceAway(f"the Kafka client failed: {type(error).__name__}: {error}") from error

    def _connected(self) -> "KafkaConsumer":
        if self._consumer is None:
            from kafka import KafkaConsumer
            from kafka.errors import UnknownTopicOrPartitionError

            self._consumer = self._cluster.connect(
                KafkaConsumer,
                **self._identity,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                max_poll_records=FETCH_MESSAGES,
                fetch_max_bytes=FETCH_BYTES,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                metadata_max_age_ms=METADATA_MS,
                reconnect_backoff_max_ms=1_000,
                allow_auto_create_topics=False,
            )
            # A group leader that does not know the topic yet would assign no partitions, and might not notice.
            if not self._consumer.partitions_for_topic(self._topic):
                self._discard()
                raise UnknownTopicOrPartitionError(self._topic)
            self._consumer.subscribe([self._topic])
        return self._consumer

    def _discard(self) -> None:
        from kafka.errors import KafkaError

        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(KafkaError):
                consumer.close(autocommit=False, timeout_ms=CLOSE_TIMEOUT_MS)


def _poll(consumer: "KafkaConsumer", *, more: bool) -> Fetched:
    held = consumer.assignment()
    (consumer.resume if more else consumer.pause)(*held)
    fetched = consumer.poll(timeout_ms=FETCH_TIMEOUT_MS)
    return Fetched(
        {_partition(place): _messages(fetched[place]) for place in fetched},
        frozenset(map(_partition, consumer.assignment())),
    )


def _messages(records: Sequence[Any]) -> list[Message]:
    return [Message(each.offset, each.value or b"", each.timestamp, _signature(each.headers)) for each in records]


def _signature(headers: Sequence[tuple[str, bytes | None]]) -> str:
    """The header's text, "" without one. The sender is untrusted: any bytes, and several headers, are possible."""
    found = [value or b"" for name, value in headers if name == HEADER]
    return found[-1].decode(errors="replace") if found else ""


def _behind(consumer: "KafkaConsumer") -> Mapping[Partition, int]:
    held = sorted(consumer.assignment())
    ends = consumer.end_offsets(held, timeout_ms=END_OFFSETS_TIMEOUT_MS) if held else {}
    positions = {place: consumer.position(place, timeout_ms=END_OFFSETS_TIMEOUT_MS) for place in held}
    return {_partition(place): ends[place] - at for place, at in positions.items() if at is not None}


def _commit(consumer: "KafkaConsumer", offsets: Mapping[Partition, int]) -> None:
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    stated = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
    consumer.commit(stated, timeout_ms=COMMIT_TIMEOUT_MS)


def _partition(place: Any) -> Partition:
    return Partition(place.topic, place.partition)


def _keeps_its_place(error: Any) -> bool:
    """Whether the consumer recovers by itself: it rejoins its group or retries its broker."""
    from kafka import errors

    rejoins = (
        errors.CommitFailedError,
        errors.RebalanceInProgressError,
        errors.IllegalGenerationError,
        errors.UnknownMemberIdError,
    )
    return isinstance(error, rejoins) or bool(getattr(error, "retriable", False))
