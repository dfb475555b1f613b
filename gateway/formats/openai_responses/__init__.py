"""POST /v1/responses and the stored responses, in OpenAI's format.

`schema`, `tools` and `items` parse a body into a `GenerationRequest` and the members that the answer repeats. `output`
builds the answer's items piece by piece, and `formatter` writes them. `turn` loads the items of earlier responses
before routing and stores the answer with the items that led to it (`record`), so several requests can continue from it.
"""
