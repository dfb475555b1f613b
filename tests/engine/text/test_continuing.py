"""Conversations that end in the middle of the assistant's last message."""

from typing import Any

import pytest

from engine.text.chat_template import ChatTemplate, ChatTemplateError
from engine.text.processor import TextProcessor

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARTS = "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}{{ part.text }}{% endfor %}[/]{% endfor %}"
USER = {"role": "user", "content": "Say on"}


def shown(smollm2: TextProcessor, source: str, content: Any, user: Any = USER) -> str:
    """The end of the prompt, as text."""
    text = TextProcessor(smollm2.tokenizer, ChatTemplate(source, {}))
    messages = [user, {"role": "assistant", "content": content}]
    ids = text.encode_chat(messages, add_generation_prompt=False, continue_final_message=True)
    return text.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("said", ["Once upon", "Say on", "two  \n", "", "<|im_", "a<|im_end|>b", "\ue010"])
def test_the_prompt_ends_where_the_last_text_does(smollm2: TextProcessor, said: str) -> None:
    begun = "<|im_start|>user\nSay on<|im_end|>\n<|im_start|>assistant\n"
    assert shown(smollm2, CHATML, said) == begun + smollm2.decode(smollm2.encode(said, add_special_tokens=False))


def test_parts(smollm2: TextProcessor) -> None:
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]
    assert shown(smollm2, PARTS, parts) == "[user]Say on[/][assistant]Onetwo"
    assert shown(smollm2, CHATML, parts).endswith("assistant\nOne\ntwo")


def test_a_template_that_does_not_show_the_last_text(smollm2: TextProcessor) -> None:
    with pytest.raises(ChatTemplateError, match="does not end"):
        shown(smollm2, "{{ messages[0].content }}", "hidden")
