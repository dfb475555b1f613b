"""Bounds of a request, checked before any work that grows with the value."""

MAX_BODY_SECONDS = 30.0
"""Timeout of the request body."""

MAX_HEADER_BYTES = 32 * 1024
MAX_HEADERS = 100
MAX_TARGET_CHARS = 8 * 1024
"""Length of path and query, decoded."""
MAX_HEAD_BYTES = 64 * 1024
"""Size of the request line and the headers as received, before they are parsed."""
MAX_HEAD_SECONDS = 10.0
"""Timeout of the request line and the headers."""
MAX_PIPELINED_REQUESTS = 16
"""Requests queued on one connection behind the one that is being answered."""

MAX_JSON_CONTAINERS = 16 * 1024
MAX_JSON_COMMAS = 512 * 1024
MAX_JSON_STRINGS = 32 * 1024
"""Arrays and objects, items and strings of a body. Parsing the largest body made of `[],` alone would block the event
loop, and with it all streams, for seconds."""

MAX_ARGUMENTS_NESTING = 64
"""Nesting depth of the JSON arguments of an earlier tool call. The body's own depth is a setting."""

MAX_MESSAGES = 2048
MAX_PROMPTS = 128
MAX_CHOICES_PER_REQUEST = 128
"""Number of prompts times `n`."""

MAX_EMBEDDING_INPUTS = 2048
"""OpenAI's bound."""

MAX_LOGIT_BIASES = 1024
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_TEMPLATE_VARIABLES = 16
MAX_COMPLETION_LOGPROBS = 5
MAX_PROMPT_LOGPROBS = 64 * 1024
"""Entries of one response: tokens of all prompts, each with its alternatives."""
MAX_ALLOWED_TOKEN_IDS = 256 * 1024
"""Exceeds the size of any vocabulary."""
MAX_BAD_WORDS = 256

MAX_GRAMMAR_BYTES = 64 * 1024
"""Size of a JSON schema as serialized by the server, of a grammar, or of all choices together."""
MAX_SCHEMA_NESTING = 32
MAX_REGEX_CHARS = 4096
MAX_GUIDED_CHOICES = 1024

MAX_INLINE_CHARS = 4 * 1024
"""Text up to this length is tokenized on the event loop, which takes milliseconds at most; longer text is tokenized on
a thread."""
MAX_DETOKENIZED_TOKENS = 256 * 1024
MIN_TOKENIZED_BYTES = 256 * 1024
TOKENIZED_BYTES_PER_TOKEN = 16
"""Bounds of text that is tokenized although it may exceed the context window, to count or truncate it: bytes per token
of the window, and a minimum for small windows. Text has about four bytes per token."""

MAX_STALLED_SECONDS = 30.0
"""Timeout of a client that reads nothing while response bytes are pending."""
