"""How a model writes calls and reasoning, by its checkpoint."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.text.chat_template import ChatTemplate
from engine.text.dialect import CHANNEL_MARKERS, CallForm, Dialect, Markers
from engine.text.processor import TextProcessor
from engine.text.tokenizer import Tokenizer as TextTokenizer

TURNS = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
HERMES = "{% for m in messages %}{% if m.tool_calls %}<tool_call>{% endif %}{% endfor %}"
MISTRAL = "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS]{% endif %}{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
THINKING = "{% if false %}<think></think>{% endif %}"


def tokenizer(*added: str, special: tuple[str, ...] = ()) -> TextTokenizer:
    """Of bytes, with tokens for some texts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    return TextTokenizer(backend, special_ids=[backend.token_to_id(text) for text in special])


def dialect(template: str | None, vocabulary: TextTokenizer | None = None, **sources: str) -> Dialect:
    compiled = None if template is None else ChatTemplate(template, {}, **sources)
    return Dialect.of(vocabulary or tokenizer(), compiled)


@pytest.mark.parametrize(
    ("template", "added", "knows", "form"),
    [
        (TURNS, (), False, CallForm.HERMES),
        (TURNS, ("[TOOL_CALLS]",), False, CallForm.HERMES),  # our own words describe the tools
        (TOOLS + TURNS, (), True, CallForm.HERMES),
        (TOOLS + TURNS + HERMES, ("<|python_tag|>",), True, CallForm.HERMES),
        (TOOLS + TURNS + MISTRAL, (), True, CallForm.MISTRAL),
        (TOOLS + TURNS + HERMES + "<arg_key>", (), True, CallForm.GLM),
        (TOOLS + TURNS + "<minimax:tool_call>", (), True, CallForm.MINIMAX),
        (TOOLS + TURNS + HERMES + "<function=f>\n<parameter=a>", (), True, CallForm.QWEN_XML),
        (TOOLS + TURNS + HERMES + "<function=f>{}</function>", (), True, CallForm.HERMES),
        (TOOLS + TURNS + "<｜tool▁calls▁begin｜>", (), True, CallForm.DEEPSEEK),
        (TURNS + "<｜tool▁calls▁begin｜>", (), False, CallForm.HERMES),
        (TOOLS + TURNS + "<|tool_call>call:f{}<tool_call|>", (), True, CallForm.GEMMA),
        (TOOLS + TURNS, ("<|tool_call>",), True, CallForm.GEMMA),
        (TOOLS + TURNS, ("<｜tool▁calls▁begin｜>",), True, CallForm.DEEPSEEK),
        (TOOLS + TURNS, ("[TOOL_CALLS]",), True, CallForm.MISTRAL),
        (TOOLS + TURNS, ("<|python_tag|>",), True, CallForm.LLAMA),
        (TOOLS + TURNS + '{% if false %}{"name": 1, "parameters": 2}{% endif %}', (), True, CallForm.LLAMA),
    ],
)
def test_the_form_of_calls(template, added, knows, form):
    found = dialect(template, tokenizer(*added))
    assert (found.knows_tools, found.call_form) == (knows, form)


def test_channels():
    channels = (
        TOOLS + "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}{% endfor %}"
    )
    vocabulary = tokenizer(special=CHANNEL_MARKERS)
    found = dialect(channels, vocabulary)
    assert found.writes_channels
    assert found.marker_ids == {vocabulary.token_of(marker) for marker in CHANNEL_MARKERS}
    assert found.turn_ends == (vocabulary.token_of("<|return|>"), vocabulary.token_of("<|call|>"))
    assert not dialect(channels, tokenizer(special=CHANNEL_MARKERS[1:])).writes_channels
    assert not dialect(TURNS, vocabulary).writes_channels
    assert dialect(TURNS, vocabulary).turn_ends == ()


GEMMA = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|tool_response>", "<turn|>")


def test_the_markers_of_gemma4():
    vocabulary = tokenizer(special=GEMMA)
    found = dialect(TOOLS + TURNS, vocabulary)
    assert found.marker_ids == {vocabulary.token_of(marker) for marker in GEMMA[:5]}
    assert found.turn_ends == (vocabulary.token_of("<|tool_response>"),)
    assert found.reasoning == Markers("<|channel>", "<channel|>", "thought")
    assert found.reasoning_ids == (vocabulary.token_of("<|channel>"), vocabulary.token_of("<channel|>"))
    begin, end = found.reasoning_ids
    label = vocabulary.encode("thought\n", add_special_tokens=False)
    assert found.reasons_already(vocabulary, [begin])
    assert found.reasons_already(vocabulary, [begin, *label])
    assert not found.reasons_already(vocabulary, [begin, *label, end])
    assert not found.reasons_already(vocabulary, label)


def test_a_template_for_tools_of_its_own_counts():
    assert dialect(TURNS, tool_source=TOOLS + TURNS).knows_tools
    assert not dialect(None).knows_tools


def test_whether_a_system_message_is_taken():
    assert dialect(TURNS).takes_system
    assert not dialect(NO_SYSTEM + TURNS).takes_system
    assert not dialect("{{ messages[-1].content }}").takes_system


def test_reasoning_is_known_by_template_or_vocabulary():
    think = Markers("<think>", "</think>")
    assert dialect(TURNS).reasoning is None
    assert dialect(TURNS, tokenizer("<think>")).reasoning is None
    in_template = dialect(TURNS + THINKING)
    assert (in_template.reasoning, in_template.reasoning_ids) == (think, None)
    vocabulary = tokenizer("<think>", "</think>")
    in_vocabulary = dialect(TURNS, vocabulary)
    assert in_vocabulary.reasoning == think
    assert in_vocabulary.reasoning_ids == (vocabulary.token_of("<think>"), vocabulary.token_of("</think>"))
    assert dialect(TURNS, tokenizer(special=("[THINK]", "[/THINK]"))).reasoning == Markers("[THINK]", "[/THINK]")


@pytest.mark.parametrize(
    ("prompt", "already"),
    [("a<think>", True), ("a<think>\n", True), ("<think></think>", False), ("<think>a", False), ("", False)],
)
@pytest.mark.parametrize("added", [(), ("<think>", "</think>")])
def test_a_prompt_may_have_opened_the_span(prompt, already, added):
    vocabulary = tokenizer(*added)
    ids = vocabulary.encode(prompt, add_special_tokens=False)
    assert dialect(TURNS + THINKING, vocabulary).reasons_already(vocabulary, ids) is already
    assert not dialect(TURNS).reasons_already(vocabulary, ids)


def test_markers_that_are_special_tokens_stay_in_an_answer():
    vocabulary = tokenizer(special=("[TOOL_CALLS]", "[ARGS]", "<end>"))
    text = TextProcessor(vocabulary, ChatTemplate(TOOLS + TURNS, {}))
    special = list(vocabulary.special_texts.values())
    assert text.detokenizer(keep_markers=True).push(special) == "[TOOL_CALLS][ARGS]"
    assert text.detokenizer().push(special) == ""
    assert text.detokenizer(skip_special_tokens=False).push(special) == "[TOOL_CALLS][ARGS]<end>"


def test_whether_one_message_may_have_several_calls():
    each = "{% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}"
    many = "{% for m in messages %}" + each + "{% endfor %}"
    single = many.replace("{{ call", "{% if loop.length > 1 %}{{ raise_exception('one') }}{% endif %}{{ call")
    assert dialect(many).takes_parallel_calls
    assert not dialect(single).takes_parallel_calls
