"""Merges the metrics of several processes into one exposition of Prometheus' text format."""

from collections.abc import Mapping, Sequence

PROCESS_LABEL = "process"


def merge(expositions: Sequence[tuple[str, bytes]]) -> bytes:
    """Each exposition with the labels that its samples get, such as `process="0"`; "": none. A family has the samples
    of all expositions below one head, as the format wants it."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for labels, exposition in expositions:
        family = ""
        for line in exposition.decode().splitlines():
            if line.startswith("# HELP "):
                family = line.split(" ", 3)[2]
                heads.setdefault(family, [line])
                samples.setdefault(family, [])
            elif line.startswith("# TYPE "):
                if len(heads[family]) == 1:
                    heads[family].append(line)
            else:
                samples[family].append(_labelled(line, labels))
    return "".join(f"{line}\n" for family in heads for line in (*heads[family], *samples[family])).encode()


def gauge(name: str, meaning: str, values: Mapping[str, float]) -> bytes:
    """The exposition of a gauge: values by labels."""
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
    return "\n".join([*lines, *(f"{name}{{{labels}}} {value}" for labels, value in values.items())]).encode()


def process_label(index: int) -> str:
    return f'{PROCESS_LABEL}="{index}"'


def _labelled(line: str, labels: str) -> str:
    if not labels:
        return line
    name, brace, rest = line.partition("{")
    if brace:
        return f"{name}{{{labels},{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{{{labels}}} {value}"
