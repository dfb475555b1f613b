"""Trains a LoRA adapter (arXiv 2106.09685) with PEFT: `python -m examples.adapter.train FOLDER`.

The examples are tokenised by the code that serves, so that the adapter sees in training the token ids that the gateway
will send through the model. The loss is that of the answer's tokens alone. Every message is seen once.
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from engine.catalog.catalog import fetch
from engine.checkpoints.checkpoint import open_checkpoint
from engine.text.processor import TextProcessor
from examples.adapter.messages import Message, messages
from gateway.config.settings import Settings

MODEL = "smollm2"
ALL_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Hyper-parameters. `warm_up`: the share of the steps in which the learning rate rises."""

    rank: int = 16
    alpha: int = 32
    targets: Sequence[str] = ALL_LINEARS
    steps: int = 120
    batch: int = 8
    learning_rate: float = 1e-3
    warm_up: float = 0.05
    clip: float = 1.0
    seed: int = 0

    def rate(self, step: int) -> float:
        """Linear warm-up, then cosine decay to zero (arXiv 1608.03983)."""
        progress = (step + 1) / self.steps
        if progress < self.warm_up:
            return self.learning_rate * progress / self.warm_up
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (progress - self.warm_up) / (1 - self.warm_up)))


@dataclass(frozen=True, slots=True)
class Example:
    """`token_ids`: the prompt, as the chat endpoint makes it, then the answer with its end-of-turn token."""

    token_ids: Sequence[int]
    prompt_tokens: int


def example_of(message: Message, text: TextProcessor) -> Example:
    """The conversation with its answer, up to the token at which generation ends.

    Raises:
        ValueError: the chat template renders the prompt of a finished conversation otherwise than that of an open one.
    """
    prompt = text.encode_chat(message.conversation)
    answered = [*message.conversation, {"role": "assistant", "content": message.order.answer}]
    whole = text.encode_chat(answered, add_generation_prompt=False)
    ends = [place for place in range(len(prompt), len(whole)) if whole[place] in text.tokenizer.eos_token_ids]
    if whole[: len(prompt)] != prompt or not ends:
        raise ValueError("the chat template has no answer that follows the generation prompt and ends")
    return Example(whole[: ends[0] + 1], len(prompt))


def load_base(path: Path) -> PreTrainedModel:
    """The base model of a GGUF file or a Hugging Face folder, as plain bf16 numbers."""
    gguf = {"gguf_file": path.name, "quantization_config": GgufConfig(dequantize=True)} if path.is_file() else {}
    folder = path.parent if gguf else path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, attn_implementation="eager", local_files_only=True, **gguf
        )
    return model


def train(
    base: PreTrainedModel, text: TextProcessor, recipe: Recipe, on_step: Callable[[int, float], None] | None = None
) -> PeftModel:
    """Train an adapter of `base`, which is changed in place. `on_step` receives each step's number and loss."""
    torch.manual_seed(recipe.seed)
    config = LoraConfig(
        r=recipe.rank, lora_alpha=recipe.alpha, target_modules=list(recipe.targets), task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT reads what transformers deprecates
        model = get_peft_model(base, config)
    model.train()
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.0)
    for step, batch in enumerate(_batches(text, recipe)):
        loss = _loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, recipe.clip)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_step is not None:
            on_step(step, loss.item())
    return model


def save(model: PeftModel, folder: Path) -> None:
    """Write the folder that `turnpike adapter upload` takes."""
    model.peft_config["default"].base_model_name_or_path = MODEL
    # "auto" would look for a model of that name on the Hub.
    model.save_pretrained(str(folder), save_embedding_layers=False)


def _batches(text: TextProcessor, recipe: Recipe) -> Iterator[list[Example]]:
    examples = [example_of(each, text) for each in messages("train", recipe.steps * recipe.batch, recipe.seed)]
    for first in range(0, len(examples), recipe.batch):
        yield examples[first : first + recipe.batch]


def _loss(model: PeftModel, batch: Sequence[Example]) -> Tensor:
    """Mean cross-entropy of the answers' tokens. Only their positions get logits: a vocabulary is wide."""
    longest = max(len(each.token_ids) for each in batch)
    token_ids = torch.zeros(len(batch), longest, dtype=torch.long)
    attended, is_answer = torch.zeros_like(token_ids), torch.zeros(token_ids.shape, dtype=torch.bool)
    for row, each in enumerate(batch):
        token_ids[row, : len(each.token_ids)] = torch.tensor(each.token_ids)
        attended[row, : len(each.token_ids)] = 1
        is_answer[row, each.prompt_tokens : len(each.token_ids)] = True
    base: Any = model.get_base_model()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = base.model(input_ids=token_ids, attention_mask=attended).last_hidden_state
        logits = base.lm_head(hidden[:, :-1][is_answer[:, 1:]])
    return functional.cross_entropy(logits.float(), token_ids[is_answer])


def main() -> None:
    """Train and save an adapter of SmolLM2."""
    usual = Recipe()
    parser = argparse.ArgumentParser(description="Train an adapter of SmolLM2 that extracts the fields of an order.")
    parser.add_argument("folder", type=Path, help="where the adapter is saved")
    parser.add_argument("--steps", type=int, default=usual.steps, help=f"of {usual.batch} messages each")
    parser.add_argument("--rank", type=int, default=usual.rank)
    parser.add_argument("--targets", nargs="+", default=usual.targets, metavar="MODULE")
    parser.add_argument("--rate", type=float, default=usual.learning_rate, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=usual.seed)
    given = parser.parse_args()
    recipe = Recipe(
        rank=given.rank,
        alpha=2 * given.rank,
        targets=given.targets,
        steps=given.steps,
        learning_rate=given.rate,
        seed=given.seed,
    )
    path = fetch(MODEL, Settings().models_dir)
    text = open_checkpoint(path).text_processor()
    base = load_base(path)
    started_s, started_cpu_s = time.monotonic(), time.process_time()

    def report(step: int, loss: float) -> None:
        if step < 5 or (step + 1) % 10 == 0:
            seconds, cpu_seconds = time.monotonic() - started_s, time.process_time() - started_cpu_s
            print(f"step {step + 1:4}: loss {loss:.4f}, {seconds:.0f} s ({cpu_seconds:.0f} s of CPU time)", flush=True)

    model = train(base, text, recipe, report)
    save(model, given.folder)
    print(f"{model.get_nb_trainable_parameters()[0]} parameters in {given.folder}")


if __name__ == "__main__":
    main()
