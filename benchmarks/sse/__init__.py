"""The way of tokens to clients: their rate, and the cost of a request compared with LiteLLM's proxy."""
