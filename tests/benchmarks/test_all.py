"""Every benchmark is run by `python -m benchmarks`, or it is said why not."""

from pathlib import Path

import benchmarks
from benchmarks.__main__ import ALL, ARGUMENTS, LEFT_OUT


def test_none_is_forgotten() -> None:
    folder = Path(benchmarks.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8")}
    packages = {path.parent.name for path in folder.glob("*/__main__.py")}
    assert (modules - {"__main__"}) | packages == {*ALL, *LEFT_OUT}
    assert len(ALL) == len(set(ALL))
    assert ARGUMENTS.keys() <= set(ALL)
