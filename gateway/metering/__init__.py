"""What requests consume: events, made durable here before the client sees the end of its stream, and brought to where
they are billed and shown."""
