"""KV blocks on disk: what was written is read back, and nothing else ever is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.memory.tiers.store import DiskStore, DiskUnavailable, UnreadableRecord, file_of, remove_others

BLOCK_BYTES = 1000
IDENTITY = b"i" * 32
SALT = b"salt of a tenant"


def store_at(path: Path, *, identity: bytes = IDENTITY, max_bytes: int = 40_000) -> DiskStore:
    return DiskStore(path, identity, BLOCK_BYTES, max_bytes)


def hash_of(number: int) -> bytes:
    return number.to_bytes(32, "little")


def block_of(number: int) -> bytes:
    return bytes((number * 31 + place) % 251 for place in range(BLOCK_BYTES))


def test_a_block_is_read_back_also_after_a_restart(tmp_path: Path) -> None:
    with store_at(tmp_path / "a.kv") as store:
        for slot in (3, 1):
            store.write(slot, hash_of(slot), SALT, block_of(slot))
        assert store.read(3, hash_of(3), SALT) == block_of(3)
    with store_at(tmp_path / "a.kv") as store:
        assert [(record.slot, record.block_hash) for record in store.found] == [(3, hash_of(3)), (1, hash_of(1))]
        assert store.read(1, hash_of(1), SALT) == block_of(1)
        assert (tmp_path / "a.kv").stat().st_size <= 40_000
        assert (tmp_path / "a.kv").stat().st_mode & 0o777 == 0o600


def test_a_tenant_reads_no_record_of_another(tmp_path: Path) -> None:
    """Not even where the header is forged to name it as the owner."""
    with store_at(tmp_path / "a.kv") as store:
        store.write(0, hash_of(0), SALT, block_of(0))
        with pytest.raises(UnreadableRecord):
            store.read(0, hash_of(0), b"another salt")
        assert block_of(0)[:64] not in (tmp_path / "a.kv").read_bytes()
    with pytest.raises(ValueError, match="no key"), store_at(tmp_path / "b.kv") as store:
        store.write(0, hash_of(0), b"", block_of(0))


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.kv"
    with store_at(path) as store:
        store.write(0, hash_of(0), SALT, block_of(0))
        whole = path.read_bytes()
        used = [at for at in range(4096, len(whole)) if whole[at]]
        for at in used[:: max(1, len(used) // 200)]:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([whole[at] ^ 1]))
                file.flush()
                with pytest.raises(UnreadableRecord):
                    store.read(0, hash_of(0), SALT)
                file.seek(at)
                file.write(whole[at : at + 1])
        assert store.read(0, hash_of(0), SALT) == block_of(0)


def test_an_erased_record_and_one_in_another_slot_are_not_read(tmp_path: Path) -> None:
    with store_at(tmp_path / "a.kv") as store:
        store.write(0, hash_of(0), SALT, block_of(0))
        store.write(1, hash_of(1), SALT, block_of(1))
        with pytest.raises(UnreadableRecord):
            store.read(1, hash_of(0), SALT)
        store.erase(0)
        with pytest.raises(UnreadableRecord):
            store.read(0, hash_of(0), SALT)
    with store_at(tmp_path / "a.kv") as store:
        assert [record.slot for record in store.found] == [1]


@pytest.mark.parametrize("changed", [{"identity": b"j" * 32}, {"max_bytes": 50_000}], ids=["model", "size"])
def test_the_file_of_another_model_or_size_is_replaced(tmp_path: Path, changed: dict[str, bytes | int]) -> None:
    with store_at(tmp_path / "a.kv") as store:
        store.write(0, hash_of(0), SALT, block_of(0))
    with store_at(tmp_path / "a.kv", **changed) as store:  # type: ignore[arg-type]
        assert not store.found
        with pytest.raises(UnreadableRecord):
            store.read(0, hash_of(0), SALT)


def test_a_file_in_use_and_one_too_small_are_refused(tmp_path: Path) -> None:
    with store_at(tmp_path / "a.kv"), pytest.raises(DiskUnavailable, match="used by another process"):
        store_at(tmp_path / "a.kv")
    with pytest.raises(DiskUnavailable, match="hold no KV block"):
        store_at(tmp_path / "b.kv", max_bytes=5000)


def test_files_of_other_models_are_removed(tmp_path: Path) -> None:
    with store_at(file_of(tmp_path, "used")), store_at(file_of(tmp_path, "served")):
        store_at(file_of(tmp_path, "old")).close()
        remove_others(tmp_path, ["served"])
        assert sorted(tmp_path.iterdir()) == sorted([file_of(tmp_path, "used"), file_of(tmp_path, "served")])


WRITER = """
import sys
from pathlib import Path
from engine.memory.tiers.store import DiskStore
store = DiskStore(Path(sys.argv[1]), b"i" * 32, 1000, 40_000)
print("ready", flush=True)
number = 0
while True:
    number += 1
    block = bytes((number * 31 + place) % 251 for place in range(1000))
    store.write(number % store.num_slots, number.to_bytes(32, "little"), b"salt of a tenant", block)
"""


def test_a_killed_writer_leaves_no_wrong_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.kv"
    for round_ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, env=os.environ, text=True
        ) as writer:
            try:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "ready\n"
                with pytest.raises(subprocess.TimeoutExpired):
                    writer.wait(0.05 + 0.013 * round_)
            finally:
                writer.send_signal(signal.SIGKILL)
        with store_at(path) as store:
            read = 0
            for record in store.found:
                try:
                    block = store.read(record.slot, record.block_hash, SALT)
                except UnreadableRecord:
                    continue
                assert block == block_of(int.from_bytes(record.block_hash, "little"))
                read += 1
            assert read >= store.num_slots - 1, "more than the record that was being written is lost"
