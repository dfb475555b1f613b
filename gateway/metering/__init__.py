"""Usage metering: events are made durable on this machine before a stream ends, and delivered to ClickHouse for billing
and reporting."""
