"""The admin API over HTTP, and the endpoints where a tenant reads its own usage and limits."""
