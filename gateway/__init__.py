"""The product: HTTP, tenants, settings, telemetry and the command line around the engine."""
