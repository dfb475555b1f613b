"""Speculative decoding: a proposer drafts several tokens, and the target model verifies them in one step. No torch but
in `device/`.

Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding; Chen et al. 2023, Accelerating Large
Language Model Decoding with Speculative Sampling. Instead of rejection sampling, the target samples its own token at
every position with that position's noise, and drafts are accepted while they equal those tokens. So the text is exactly
the target's, for any proposer.

    proposer    the interface of proposers
    ngram       proposes what followed an earlier occurrence of the last tokens
    draft_model proposes what a small model samples: draft_memory tracks the computed KV, vocabulary checks the pair
    host_drafter  the small model's steps on a CPU: draft_batch holds the requests, draft_head samples, shared_table
                shares embeddings
    device/     its steps on a GPU: drafter launches them, draft_steps plans them, draft_counts has penalties of drafts,
                frequent_head logits of some tokens, draft_placement its memory and CUDA graphs
    policy      the interface of depth policies, and a fixed depth
    controller  the adaptive policy: depth_forecast predicts each depth's outcome from acceptance, step_times and
                draft_cost; draft_catchup selects requests; exploration is the budget of trying depths
    speculator  calls the policy and the proposers, and reports results to the policy
    tally       metrics
"""

from engine.speculation.policy import (
    Candidate,
    DepthPolicy,
    Drafting,
    FixedDepth,
    SpeculationLoad,
    StepOutcome,
    Verified,
)
from engine.speculation.proposer import DraftWant, Proposer
from engine.speculation.speculator import Proposals, Speculator

__all__ = [
    "Candidate",
    "DepthPolicy",
    "DraftWant",
    "Drafting",
    "FixedDepth",
    "Proposals",
    "Proposer",
    "SpeculationLoad",
    "Speculator",
    "StepOutcome",
    "Verified",
]
