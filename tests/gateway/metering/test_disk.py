"""The journal on a disk that fails or is full: no write that failed is reported as a success, and none is billed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.metering.journal.journal import Journal
from tests.gateway.metering.crashing import Record
from tests.gateway.metering.on_faulty_disk import SENT_BEFORE, TOKENS
from tests.support.usage_requests import journalled

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: apt-get install -y --no-install-recommends gcc libc6-dev")
    built = tmp_path_factory.mktemp("faulty_disk") / "faulty_disk.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(built), str(HERE / "faulty_disk.c"), "-ldl"], check=True
    )
    return built


def run(library: Path, *arguments: object) -> int:
    """The exit status of the process on the faulty disk."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gateway.metering.on_faulty_disk", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        timeout=60,
    )
    if done.returncode > 0:
        raise AssertionError(done.stderr.decode(errors="replace")[-4000:])
    return done.returncode


FAULTS = [("full", 0), *(("sync", syncs_left) for syncs_left in range(4))]


@pytest.mark.parametrize(("kind", "syncs_left"), FAULTS)
@pytest.mark.parametrize("then", ["recover", "die"])
async def test_clients_see_what_is_billed(library: Path, tmp_path: Path, kind: str, syncs_left: int, then: str) -> None:
    path, record = tmp_path / "usage" / "journal.db", Record(tmp_path / "record")
    assert run(library, path, record.path, kind, syncs_left, then) == (-9 if then == "die" else 0)
    await Journal(path).aclose()  # what the next start finds, it ends
    bill = {event.request_id: event.completion_tokens for event in journalled(path)}
    ended, failed = record.tokens("ended"), record.tokens("failed")
    assert failed, "the disk failed while requests ran"
    assert "refused" in record.tokens("refused"), "new work is turned away"
    assert {request: bill.get(request) for request in ended} == dict.fromkeys(ended, TOKENS)
    for request, sent_before in failed.items():
        if then == "recover":
            assert bill[request] == sent_before, request
        else:
            assert bill.get(request, 0) <= sent_before, request
    assert len(bill) == len(journalled(path))
    assert "refused" not in bill
    assert SENT_BEFORE > 0
