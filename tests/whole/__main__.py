"""python -m tests.whole: simulate the whole program, seed by seed."""

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings go the same way each time
    os.execve(
        sys.executable, [sys.executable, "-m", "tests.whole", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
    )

import tests.whole.clock  # noqa: F401  before anything that binds a clock
from tests.whole.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
