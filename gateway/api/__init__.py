"""The OpenAI-compatible HTTP surface. In the order in which a generating request passes them:

    middleware      request id, key, bounds on the frame, access log
    endpoint        one request from its first byte to its answer's last, step by step
    json_body       bytes to one JSON object
    fields, sampling, chat_schema, completion_schema
                    the object to a `GenerationRequest`; every value checked, the field at fault named
    session_stage   what a session has of the conversation goes in front of it
    route_stage     the model that is to answer, and those that may stand in for it
    placing         the first of them that takes the request: with `prepare` (text to token ids that fit the model's
                    window), `shed` and `admit` (what it may use is held, and its usage opened)
    trial           a small model's answer that is judged before anybody sees it
    serve, deltas   the engine's deltas to the client, until either has done
    wire, chat_wire, completion_wire, logprobs, usage
                    how an answer is spelt
    errors          every error that leaves the server
    spelling        in whose API's envelope, by the path

`messages` is Anthropic's API, a folder of its own that ends in the same request. `chat` and `completions` say what is
each endpoint's own; `models`, `tokenization` and `health` are small ones. `gateway.app` gives them all their paths.
"""
