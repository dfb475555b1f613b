"""The relay: delivers the journal's events to Kafka or ClickHouse, at least once, in order."""
