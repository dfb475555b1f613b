"""Configuration: settings, service classes, the pepper, and checks for unsafe settings."""
