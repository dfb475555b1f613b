"""The APIs' request and response formats: OpenAI's, OpenAI's Responses, Anthropic's Messages.

Each parses a body into a `gateway.generation.request.GenerationRequest` and formats the answer.
"""
