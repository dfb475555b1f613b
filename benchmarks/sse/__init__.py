"""The way of tokens to clients: how many a second, and what a request costs beside LiteLLM's proxy."""
