"""The format of each syntax of calls."""

from engine.text.dialect import CallForm
from gateway.speech import deepseek_calls, gemma_calls
from gateway.speech.tagged_calls import glm, minimax, qwen_xml, qwen_xml_function
from gateway.speech.tool_call_parsers import Form, hermes, llama, mistral

_TOOL_CALL, _CLOSING = "<tool_call>", ("</tool_call>",)
FORMS = {
    CallForm.HERMES: Form({_TOOL_CALL: hermes}, _CLOSING),
    CallForm.LLAMA: Form({"<|python_tag|>": llama}, bare=llama),
    CallForm.MISTRAL: Form({"[TOOL_CALLS]": mistral}),
    CallForm.GLM: Form({_TOOL_CALL: glm}, _CLOSING),
    CallForm.MINIMAX: Form({"<minimax:tool_call>": minimax}, ("</minimax:tool_call>",)),
    CallForm.QWEN_XML: Form({_TOOL_CALL: qwen_xml, "<function=": qwen_xml_function}, _CLOSING),
    CallForm.DEEPSEEK: Form(
        {deepseek_calls.CALLS: deepseek_calls.deepseek, deepseek_calls.CALL: deepseek_calls.deepseek_call},
        (deepseek_calls.FENCE, deepseek_calls.CALL_END, deepseek_calls.CALLS_END),
    ),
    CallForm.GEMMA: Form({gemma_calls.CALL: gemma_calls.gemma}, (gemma_calls.CALL_END,)),
}
"""All but `CallForm.HARMONY`, whose calls are messages."""
