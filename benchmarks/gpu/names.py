"""Names of stages and of measurements, for the stages and for the report. Needs no Triton."""

LIMITS, SMOKE, ATTENTION, SWEEP = "limits", "smoke", "attention", "sweep"
DEPENDENT_LAUNCH = "dependent launch"
PRODUCTS, PLAIN, FEW_ROWS = "products", "plain numbers", "plain numbers, few rows"
"""PLAIN: of cuBLAS. FEW_ROWS: of the kernel for up to 16 rows."""
QUANTISED = ("integers of 4 bits", "integers of 8 bits", "MXFP4", "e4m3", "e4m3 in groups", "int8")
COPY, MATMUL = "copy", "bf16 matmul"
WEIGHTS, ALONE, EAGER, SATURATED = "weights read a step", "alone", "alone without graphs", "saturated"
DEPENDENT = "alone with dependent launch"
PEER_STATIC, PEER_CONTINUOUS = "transformers static batch", "transformers continuous batching"
PEER_ALONE = "transformers alone"


def served(model: str) -> str:
    return f"serve {model}"


def peer(model: str) -> str:
    return f"transformers {model}"


def ttft(tokens: int) -> str:
    return f"first token of {tokens}"


def decode(batch: int, context: int) -> str:
    return f"decode attention, batch {batch}, context {context}"


def extend(tokens: int, earlier: int) -> str:
    return f"extend attention, {tokens} tokens behind {earlier}"


def product(kind: str, rows: int) -> str:
    return f"product with {kind}, {rows} rows"


def speed(kind: str, rows: int) -> str:
    return f"{product(kind, rows)}: speed"
