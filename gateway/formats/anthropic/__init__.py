"""Anthropic's Messages API: a body to a `GenerationRequest`, an answer to content blocks.

schema     the body of /v1/messages and of count_tokens
blocks     its messages' content blocks, as a conversation for the chat template
tools      the tools it declares, and its choice among them
formatter  the answer, streamed and whole
count      POST /v1/messages/count_tokens
endpoint   POST /v1/messages
"""
