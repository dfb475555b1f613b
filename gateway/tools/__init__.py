"""Clients of any OpenAI-compatible server: load test and terminal monitor."""
