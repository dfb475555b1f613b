"""Memory that a start leaves behind."""

import subprocess
import sys

import pytest

from gateway.process.memory_trim import untouched_mappings

SMAPS = """\
7f0000000000-7f0000010000 r-xp 00000000 08:01 11  /usr/lib/libone.so.1
Rss:                  64 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
7f0000010000-7f0000020000 r--p 00010000 08:01 11  /usr/lib/libone.so.1
Anonymous:             8 kB
7f0000020000-7f0000030000 rw-p 00020000 08:01 11  /usr/lib/libone.so.1
Anonymous:             0 kB
7f0000030000-7f0000040000 r--s 00000000 08:01 12  /usr/lib/libshared.so
Anonymous:             0 kB
7f0000040000-7f0000050000 r--p 00000000 08:01 13  /models/model.gguf
Anonymous:             0 kB
7f0000050000-7f0000060000 r--p 00000000 00:00 0
Anonymous:             0 kB
7f0000060000-7f0000068000 r--p 00000000 08:01 14  /usr/lib/libtwo.so
Anonymous:             0 kB
"""


def test_only_pages_that_are_a_librarys_file_still_may_go() -> None:
    assert list(untouched_mappings(SMAPS)) == [(0x7F0000000000, 0x7F0000010000), (0x7F0000060000, 0x7F0000068000)]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_everything_works_without_those_pages_and_less_is_resident() -> None:
    program = """
import chdb
from gateway.process.memory_trim import trim_after_startup
def file_kib():
    lines = (line.split() for line in open("/proc/self/status"))
    return next(int(words[1]) for words in lines if words[0] == "RssFile:")
before = file_kib()
trim_after_startup()
after = file_kib()
assert after < before / 2, (before, after)
assert str(chdb.query("SELECT sum(number) FROM numbers(100)")).strip() == "4950"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_embedded_store_needs_no_data_frames() -> None:
    program = """
import asyncio, sys
from gateway.process.memory_trim import DATA_FRAMES, block_imports
block_imports(DATA_FRAMES)
from gateway.analytics.opening import open_analytics

async def main():
    store = open_analytics("chdb://memory")
    await store.command("CREATE TABLE t (a UInt32, b String) ENGINE = MergeTree ORDER BY a")
    await store.insert("t", ["a", "b"], [(1, "one"), (2, "two")])
    assert await store.query("SELECT a, b FROM t ORDER BY a") == [(1, "one"), (2, "two")]
    await store.aclose()

asyncio.run(main())
assert not [name for name in DATA_FRAMES if sys.modules[name] is not None]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_serves_does_not_import_torch() -> None:
    served = "gateway.management.cli.serve, gateway.process.serve, gateway.process.serving"
    program = f"import sys, {served}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_imports_are_left_out_within_the_block_alone() -> None:
    program = """
from gateway.process.memory_trim import without_imports
import json
with without_imports(("colorsys", "json")):
    try:
        import colorsys
    except ImportError:
        print("left out")
    import json
import colorsys
print(colorsys.__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["left out", "colorsys"]
