"""The relay: brings the journal's events to Kafka or ClickHouse, at least once, in order."""
