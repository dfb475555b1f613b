"""Choice of the model that answers a request: by name, by question complexity, by load and by budget.

    names, versions     names that a request may use, and the version of a model that a session or tenant gets
    question, features, score
                        estimate of how much the large model of a pair gains over the small one
    replicas            load of each model
    router, reason      the decision: a route, and the routes to fall back to if its model refuses
    cascade             confidence of the small model in its own answer

`fitting` fits the score to a pair of models, offline. `gateway.generation` follows the route.
"""
