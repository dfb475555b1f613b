"""The OpenAI-compatible HTTP surface. In the order in which a generating request passes them:

    middleware      request id, key, bounds on the frame, access log
    endpoint        one request from its first byte to its answer's last, step by step
    json_body       bytes to one JSON object
    fields, sampling, chat_schema, completion_schema
                    the object to a `GenerationRequest`; every value checked, the field at fault named
    prepare         text to token ids that fit the model's window
    serve, deltas   the engine's deltas to the client, until either has done
    wire, chat_wire, completion_wire, logprobs, usage
                    how an answer is spelt
    errors          every error that leaves the server

`chat` and `completions` say what is each endpoint's own; `models`, `tokenization` and `health` are small ones.
`gateway.app` gives them all their paths.
"""
