"""ClickHouse as the relay's destination, without Kafka."""

from collections.abc import Sequence

import orjson

from gateway.analytics import Analytics, AnalyticsAway, AnalyticsError
from gateway.metering.event import UsageEvent
from gateway.metering.journal.journal_file import JournalRow
from gateway.metering.relay.destination import DestinationAway, DestinationRefused
from gateway.metering.signature import EventSigner
from gateway.metering.sink.intake import Intake, Message

PARTITION = 0
"""A journal has one partition. Invalid events become dead letters of the topic `journal-SOURCE`."""


class AnalyticsDestination:
    """Inserts each batch under the deduplication token `journal-SOURCE-0-FIRST-LAST` of its sequences.

    A delivery with an unknown outcome is repeated with the same rows and token, so the dashboards' sums count it once.
    After a crash between an insert and its acknowledgement the next process may form other batches, which the sums
    count twice until `ReconciliationMonitor` corrects them. Queries of events count each event id once in both cases.

    The caller owns the store and its migrations. Each row has its event's signature, for reconciliation.
    """

    linger_ms = 500

    def __init__(self, analytics: Analytics, signer: EventSigner) -> None:
        def signed(event: UsageEvent, _: str) -> str:
            return signer.sign(event)

        self._intake = Intake(analytics, signed)

    async def deliver(self, rows: Sequence[JournalRow]) -> None:
        """
        Raises:
            DestinationAway
            DestinationRefused: the tables have an unexpected schema.
        """
        source = orjson.loads(rows[0].body)["source"]
        messages = [Message(*row) for row in rows]
        try:
            await self._intake.store(f"journal-{source}", PARTITION, messages)
        except AnalyticsAway as error:
            raise DestinationAway(str(error)) from error
        except AnalyticsError as error:
            raise DestinationRefused(str(error)) from error

    async def aclose(self) -> None:
        return
