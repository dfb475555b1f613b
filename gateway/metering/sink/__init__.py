"""The sink: takes usage events from Kafka to ClickHouse."""
