"""What an operator states: settings, service classes, the pepper, and what no program starts with."""
