"""Tools in prompts, and parsers of model output: text, reasoning and tool calls.

tools       the tools that a request declares, and its choice among them
prompting   tools and tool calls in the prompt
forced      the grammar of an answer that must be tool calls
pieces      the parts of an answer
output_parser   parses each delta of an answer once, with one reader per choice
calls       the reader that finds calls in one of these forms
tool_call_parsers, tagged_calls, deepseek_calls, gemma_calls   the forms in which models write them, in call_forms
json_text, tagged_values, argument_types   arguments as JSON, or as values between tags, by the tool's schema
harmony     the reader of answers that are messages in channels: reasoning, text and calls
reasoning   the reader that separates reasoning from the answer
message     an answer as a message of the conversation
"""
