"""The format of each syntax of calls."""

from engine.text.dialect import CallForm
from gateway.speech.tagged_calls import glm, minimax
from gateway.speech.tool_call_parsers import Form, hermes, llama, mistral

FORMS = {
    CallForm.HERMES: Form("<tool_call>", hermes),
    CallForm.LLAMA: Form("<|python_tag|>", llama, bare=True),
    CallForm.MISTRAL: Form("[TOOL_CALLS]", mistral),
    CallForm.GLM: Form("<tool_call>", glm),
    CallForm.MINIMAX: Form("<minimax:tool_call>", minimax),
}
"""All but `CallForm.HARMONY`, whose calls are messages."""
