"""POST /v1/responses and the stored ones, in OpenAI's shape.

A body is read into a `GenerationRequest` and what its answer says again (`schema`, `tools`, `items`); the answer is a
row of items that grows piece by piece (`output`), spelt by `wire`. `turn` is one request's way through what is stored:
an answer is kept with the items that led to it (`record`), so any of them can be gone on from, more than once.
"""
