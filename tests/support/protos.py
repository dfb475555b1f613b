"""Makes the Python modules of the `.proto` files: `python -m tests.support.protos`."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path("gateway/grpc/protos")


def made() -> dict[Path, bytes]:
    """Relative path -> content of every generated module, as the installed protoc makes them."""
    protos = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / FOLDER).glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"--python_out={folder}", f"--pyi_out={folder}"]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", *outputs, *protos]
        subprocess.run(command, check=True, timeout=60)
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {path.relative_to(folder): path.read_bytes() for path in paths}


def main() -> None:
    for path, content in made().items():
        (ROOT / path).write_bytes(content)


if __name__ == "__main__":
    main()
