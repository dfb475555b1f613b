"""The OpenAI-compatible HTTP surface: read these in the order in which a request passes them.

    middleware     request id, key, body bound, access log
    json_body      bytes to one JSON object
    chat_schema, completion_schema, sampling, fields
                   the object to a `GenerationRequest`, every value checked, the field at fault named
    prepare        text to token ids, held against the model's window
    serve, deltas  the engine's deltas to the client, until either is done
    chat_wire, completion_wire, logprobs, usage
                   how the answer is spelt
    errors         every error that leaves the server

`chat`, `completions`, `models`, `tokenization` and `health` are the endpoints; `gateway.app` gives them paths.
"""
