"""A sample of the shipped variants, to compile for GPUs other than Hopper: what takes most memory and registers."""

from kernels.triton.report import shipped_variants
from kernels.triton.variants import KernelVariant

SAMPLE = frozenset(
    {
        "decode-bf16-d128",
        "decode-drafts-bf16-d256",
        "extend-bf16-d64-window-sinks",
        "extend-bf16-d128-window",
        "extend-bf16-d256-window-cap",
        "extend-bf16-d512",
        "extend-bf16-int8kv-d256",
        "latent-decode-bf16-20x512+64",
        "latent-extend-bf16-20x512+64",
        "few-rows-splits-bf16",
        "grouped-4x32-many-bf16",
        "rounded-i8-many-bf16",
    }
)


def sampled_variants(capability: int) -> list[KernelVariant]:
    return [variant for variant in shipped_variants(capability) if variant.name in SAMPLE]
