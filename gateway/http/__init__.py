"""HTTP below the API formats.

middleware      request id, API key, size limits, access log
request_state   state of one request, for endpoints and the access log
json_body       request bytes to one JSON object
fields, bounds  strict readers of its members; each error names the parameter
errors          exceptions to status, type and code, in OpenAI's envelope
error_format    the error envelope by path: OpenAI's or Anthropic's
"""
