"""Models that other servers run, sold like those of the engine: any server with OpenAI's API, such as vLLM.

    fleet        one `EngineClient` of the local engine and the upstream models
    model        one upstream model: what the pipeline reads of it, and its calls
    text         its text processor: tokens counted by a tokenizer, or estimated
    body         a prepared prompt -> the body of the server's endpoint
    connection   the HTTP client: pool, timeouts, retries before the first byte
    events       bytes -> server-sent events
    answers      events -> deltas, with the tokens counted as exactly as the server allows
    embedding    the same of an embedding
    stream       the `OutputStream` of a call
    load         bound on concurrent requests, the queue, predicted waits
    breaker      circuit breaker with a half-open probe
    errors       the server's errors as those of this gateway
    metrics      Prometheus metrics

Prompts travel as `gateway.generation.remote_prompt.RemotePrompt` in the place of token ids.
"""
