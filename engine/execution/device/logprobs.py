"""Log-probabilities of tokens, computed on the device and copied to the host asynchronously."""

from torch import Tensor

from engine.execution.logprobs import Scores
from kernels.ops import Ops


def measure(ops: Ops, logits: Tensor, tokens: Tensor, top_count: int) -> Scores[Tensor]:
    """Scores of tokens int64 [R] under logits [R, V], with the `top_count` most likely tokens of each row."""
    logits = logits.float()
    normalisers, logprobs, _ = ops.token_logprobs(logits, tokens)
    top = logits.topk(top_count, dim=-1)
    return Scores(tokens, logprobs, top.indices, top.values - normalisers[:, None])


def on_host(scores: Scores[Tensor]) -> Scores[Tensor]:
    """A copy on the host; the transfer may still be in progress on return."""
    return Scores(*map(to_host, (scores.tokens, scores.logprobs, scores.top_tokens, scores.top_logprobs)))


def to_host(tensor: Tensor) -> Tensor:
    """A separate copy on the host; the transfer may still be in progress on return."""
    return tensor.to("cpu", non_blocking=True, copy=True)
