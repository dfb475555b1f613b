"""The way of one generating request, from a validated body to its billed answer. In the order of the steps:

    endpoint        parses the body, joins the session, selects the route, and runs the pipeline with a sink
    context         `RequestContext`: one request; `Candidate`: the request as one model would run it
    session_stage   prepends the stored conversation of a session
    route_stage     selects the model, and the models that may replace it
    pipeline        the way of every request: shed, admit, submit, read, count, settle
    candidates      the first model of the route that accepts the request: `prepare` (text to token ids within the
                    model's context window), `shed`, `admit` (holds what the request may use, opens its usage record)
    substitute      the other model of the route, if the server of the first gives no answer
    cascade         the answer of a small model that is checked before it is sent
    run, deltas     submits to the engine and reads its deltas, until either side ends
    output_parsing  parses each delta once, into the pieces that client, session and usage record share
    delivery        the sinks that send an answer: as a stream or as a whole

Embeddings and the summary of a session are further sinks. The formats themselves are in `gateway.formats`;
`gateway.app` maps paths to endpoints.
"""
