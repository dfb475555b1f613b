"""The way of one generating request, from a validated body to its billed answer. In the order of the steps:

    endpoint        one request from its first byte to the last byte of its answer
    request         `GenerationRequest`: what the body of every generating endpoint is parsed into
    session_stage   prepends the stored conversation of a session
    route_stage     selects the model, and the models that may replace it
    placing         the first of these models that accepts the request: `prepare` (text to token ids within the model's
                    context window), `shed` and `admit` (holds what the request may use, opens its usage record)
    trial           a cascade: the answer of a small model that is checked before it is sent
    serve, deltas   submits to the engine and sends its deltas to the client, until either side ends
    wire, usage     what all response formats share

The formats themselves are in `gateway.formats`; `gateway.app` maps paths to endpoints.
"""
