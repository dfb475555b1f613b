"""Which model answers: by name, by how hard the question looks, by how busy and how dear the models are.

    names, versions     what a request may name, and the version of it that a session or a tenant gets
    policy              what a tenant wants
    question, features, score
                        how much the large model of a pair is expected to win
    replicas            how busy each model is
    router, reason      all of it to a route, with the routes to take where the model of that refuses
    cascade             whether a small model was sure of its answer

`fitting` fits the score to a pair of models, offline. `gateway.generation` follows the route.
"""
