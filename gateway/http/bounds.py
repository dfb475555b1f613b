"""Bounds on what a request may ask, checked before any work that grows with the value."""

MAX_BODY_SECONDS = 30.0
"""A client that takes longer to send its body is cut off."""

MAX_HEADER_BYTES = 32 * 1024
MAX_HEADERS = 100
MAX_TARGET_CHARS = 8 * 1024
"""Of path and query, decoded."""
MAX_HEAD_BYTES = 64 * 1024
"""Of a head as it comes in, with its request line, before it is known how long it will be."""
MAX_HEAD_SECONDS = 10.0
"""A client that takes longer to say what it wants is cut off."""
MAX_PIPELINED_REQUESTS = 16
"""Sent on one connection without waiting for the answer to the one before."""

MAX_JSON_CONTAINERS = 16 * 1024
MAX_JSON_COMMAS = 512 * 1024
MAX_JSON_STRINGS = 32 * 1024
"""What a parser would have to build, arrays and objects, their items, and strings: a body of the largest size made
of nothing but `[],` would hold up everybody's streams for seconds."""

MAX_ARGUMENTS_NESTING = 64
"""Depth of JSON in the arguments of an earlier tool call. The body's own bounds are settings."""

MAX_MESSAGES = 2048
MAX_PROMPTS = 128
MAX_CHOICES_PER_REQUEST = 128
"""Prompts times n."""

MAX_EMBEDDING_INPUTS = 2048
"""As OpenAI has it."""

MAX_LOGIT_BIASES = 1024
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 256
MAX_TEMPLATE_VARIABLES = 16
MAX_COMPLETION_LOGPROBS = 5
MAX_PROMPT_LOGPROBS = 64 * 1024
"""Entries in an answer: tokens of all prompts, each with its alternatives."""
MAX_ALLOWED_TOKEN_IDS = 256 * 1024
"""More than a vocabulary has."""
MAX_BAD_WORDS = 256

MAX_GRAMMAR_BYTES = 64 * 1024
"""Of a JSON schema as we write it, of a grammar, and of all choices together."""
MAX_SCHEMA_NESTING = 32
MAX_REGEX_CHARS = 4096
MAX_GUIDED_CHOICES = 1024

MAX_INLINE_CHARS = 4 * 1024
"""Text up to this length is tokenised on the event loop, which takes milliseconds for the slowest; longer text on a
thread."""
MAX_DETOKENIZED_TOKENS = 256 * 1024
MIN_TOKENIZED_BYTES = 256 * 1024
TOKENIZED_BYTES_PER_TOKEN = 16
"""What is tokenised though it may not fit the model's window, to be counted or cut to length: so many bytes for each
token of the window, and in any case so many. Text has about four bytes to a token."""

MAX_STALLED_SECONDS = 30.0
"""A client that does not take what lies in its connection for so long is given up."""
