"""The shipped variants of the kernels that prepare a step, as described in `kernels.triton.variants`: one of each."""

from kernels.layout import BLOCK_TOKENS
from kernels.step import COUNTING_WORDS, ROW_WORDS
from kernels.triton import step
from kernels.triton.variants import KernelVariant


def step_variants() -> list[KernelVariant]:
    """All variants of these kernels."""
    return [
        KernelVariant(
            name="step-scatter-runs",
            kernel=step.scatter_runs_kernel,
            signature={"words": "*i32", "upload": "*i32", "runs": "i32", "length": "i32"},
            constexprs={"TILE": step.SCATTER_TILE},
            aligned=frozenset({"words", "upload"}),
        ),
        KernelVariant(
            name="step-derive",
            kernel=step.derive_kernel,
            signature={
                **dict.fromkeys(("rows", "tokens", "block_tables", "drafts"), "*i32"),
                **dict.fromkeys(("token_ids", "positions", "slot_mapping", "ends", "draw_positions"), "*i64"),
                **dict.fromkeys(("token_rows", "query_starts", "context_lens", "row_slots"), "*i32"),
                **dict.fromkeys(("tokens_stride", "blocks_stride"), "i32"),
            },
            constexprs={
                "drafts_stride": 1,
                "ROW": ROW_WORDS,
                "BLOCK": BLOCK_TOKENS,
                "TILE": step.TOKEN_TILE,
            },
            aligned=frozenset({"rows", "tokens", "block_tables", "drafts"}),
        ),
        KernelVariant(
            name="step-settled-tokens",
            kernel=step.settled_tokens_kernel,
            signature={
                **dict.fromkeys(("rows", "drafts", "settled"), "*i32"),
                **dict.fromkeys(("last", "drawn"), "*i64"),
                "drafts_stride": "i32",
            },
            constexprs={"ROW": ROW_WORDS},
            aligned=frozenset({"rows", "drafts", "settled", "last", "drawn"}),
        ),
        KernelVariant(
            name="step-accept-drafts",
            kernel=step.accept_drafts_kernel,
            signature={
                **dict.fromkeys(("rows", "drafts", "tokens", "rejected"), "*i32"),
                **dict.fromkeys(("last", "drawn"), "*i64"),
                **dict.fromkeys(("length", "tokens_stride", "drafts_stride"), "i32"),
            },
            constexprs={"ROW": ROW_WORDS},
            aligned=frozenset({"rows", "drafts", "tokens", "rejected", "last", "drawn"}),
        ),
        KernelVariant(
            name="step-follow-accepted",
            kernel=step.follow_accepted_kernel,
            signature={**dict.fromkeys(("rows", "rejected"), "*i32"), "count": "i32"},
            constexprs={"ROW": ROW_WORDS, "TILE": step.ROW_TILE},
            aligned=frozenset({"rows", "rejected"}),
        ),
        KernelVariant(
            name="step-count-tokens",
            kernel=step.count_tokens_kernel,
            signature={
                **dict.fromkeys(("counts", "tokens", "countings"), "*i32"),
                **dict.fromkeys(("counts_stride", "tokens_stride"), "i32"),
            },
            constexprs={"WORDS": COUNTING_WORDS, "TILE": step.COUNT_TILE},
            aligned=frozenset({"counts", "tokens", "countings"}),
        ),
    ]
