"""Drafts of what a model will say next, for it to check several at once. No torch.

A proposer guesses, the target model draws its own token at every position with that position's own noise, and drafts
are accepted while they equal those draws. So the text is the target's whatever the proposer is.

    proposer    the protocol: who guesses
    ngram       guesses what followed the last time
    draft_model guesses what a small model would say; draft_memory knows what of that is computed, draft_head draws it,
                vocabulary says who can draft for whom
    policy      how many drafts to ask for: the protocol, and a fixed number
    controller  the policy that asks for as many as pay: options says what each depth would bring, by acceptance,
                step_times and draft_cost as measured; catching_up for whom; trials what finding out may cost
    speculator  asks the policy, then the proposers in order of preference, and tells the policy what came of it
    tally       counts what came of it, for metrics
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
