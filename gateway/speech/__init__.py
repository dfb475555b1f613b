"""What a model says, taken apart: text for the reader, reasoning, and calls of tools.

tools       the tools that a request declares, and its choice among them
prompting   what a model is told of them
forced      the grammar of an answer that has to be calls
pieces      what an answer is made of
output_parser   parses each delta of an answer once, each choice with a reader of its own
calls       the reader that finds calls in one of these forms
tool_call_parsers   the forms in which models write them, over json_text
reasoning   the reader that separates reasoning from the answer
message     an answer as a message of the conversation that goes on
"""
