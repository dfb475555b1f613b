"""The benchmark of peers on servers that are none: what it asks, stops, counts, keeps and prints."""

import dataclasses
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.limits import Limits
from benchmarks.peers import __main__ as command
from benchmarks.peers import environment, llama_cpp, load, models, systems, table
from benchmarks.peers.environment import InstallError
from benchmarks.peers.load import Figures, chats, figures, letters, prefixed_chats, words
from benchmarks.peers.parts import Asked, Part
from benchmarks.peers.results import ADAPTED, CHATS, OWN, SHARED, Memory, Run, Sample, gain, load_runs, median, ratio
from benchmarks.peers.running import Plan, run_part
from benchmarks.peers.server import Launch, ServerFailed
from benchmarks.peers.server import running as running_server
from benchmarks.peers.systems import Contestant, Setting
from engine.checkpoints.checkpoint import open_checkpoint
from gateway.tools.bench.outcome import FINISHED, Outcome
from kernels.arrays import FLOAT32
from tests.support.servers import free_port

FAKE = Path(__file__).with_name("fake_peer.py")
LIMITS = Limits(2, 30.0, {32: 200.0, 1024: 400.0})
TINY = models.TENTH | {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def fake(key: str | None = None) -> Launch:
    port = free_port()
    return Launch([sys.executable, str(FAKE), str(port)], port, key=key)


def made(rate: float, ttft_ms: float = 10.0) -> Figures:
    return Figures(rate, 2 * rate, ttft_ms, 2 * ttft_ms, 5.0, 4, 0, 0)


def run_of(*samples: Sample, part: str = "tenth", names: tuple[str, ...] = ("turnpike", "vllm")) -> Run:
    memory = [Memory(name, 1.0, 100.0, 200.0, 40.0 if name == "turnpike" else None) for name in names]
    about = (
        part,
        "Tiny",
        "2026-01-01 00:00:00",
        "processor",
        LIMITS,
        1_000_000,
        {"turnpike": 2_000_000},
        {"turnpike": 10 << 20},
    )
    return Run(*about, samples=[*samples], memory=memory)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(threads=1, context=1024, sequences=4, scratch=tmp_path)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_missing(contestant: Contestant) -> str | None:
        return "not here" if contestant.name == "absent" else None

    monkeypatch.setattr(Contestant, "missing", nothing_missing)
    launch: Callable[[Contestant, Setting], Launch] = lambda contestant, setting: fake("secret")  # noqa: E731
    monkeypatch.setattr(systems, "_LAUNCHES", dict.fromkeys(("turnpike", "vllm", "llama.cpp"), launch))


def part(name: str, *names: str, prefix: bool = False) -> Part:
    contestants = tuple(Contestant(each, "vllm", Path("none")) for each in names)
    return Part(name, "Tiny", contestants, letters, 1_000_000, {}, (1, 4), prefix=prefix)


@pytest.mark.usefixtures("faked")
def test_every_server_answers_the_same_in_every_pass_and_all_is_kept(tmp_path: Path, setting: Setting) -> None:
    results = tmp_path / "results"
    run = run_part(part("tenth", "turnpike", "vllm", "absent"), Plan((1, 4), passes=2), setting, LIMITS, results)
    assert run.left_out == {"absent": "not here"}
    taken = [(each.run_pass, each.level, each.contestant) for each in run.samples]
    assert taken == [
        *((0, 1, "turnpike"), (0, 1, "vllm"), (0, 4, "vllm"), (0, 4, "turnpike")),
        *((1, 1, "vllm"), (1, 1, "turnpike"), (1, 4, "turnpike"), (1, 4, "vllm")),
    ]
    assert all(each.figures.failed == 0 and each.figures.short_tokens == 0 for each in run.samples)
    assert {each.figures.requests for each in run.samples} == {8, 10}
    assert all(each.loaded_mib > 1 and each.start_s > 0 for each in run.memory)
    assert load_runs(results) == [run]


@pytest.mark.usefixtures("faked")
def test_prefixes_are_measured_both_ways(tmp_path: Path, setting: Setting) -> None:
    prefixed = part("prefix", "turnpike", prefix=True)
    run = run_part(prefixed, Plan((4,), passes=1, share=0.25), setting, LIMITS, tmp_path / "results")
    assert [(each.kind, each.figures.requests) for each in run.samples] == [(OWN, 6), (SHARED, 6)]
    text = "\n".join(table.describe([run], ()))
    assert "one prefix" in text
    assert "absent" not in text


@pytest.mark.usefixtures("faked")
def test_adapters_take_turns_after_the_base(tmp_path: Path, setting: Setting) -> None:
    names = tuple(f"adapter-{number}" for number in range(6))
    adapted = dataclasses.replace(part("adapters", "turnpike", "vllm"), adapters=names)
    run = run_part(adapted, Plan((4,), passes=1), setting, LIMITS, tmp_path / "results")
    assert [(each.contestant, each.kind, each.figures.requests) for each in run.samples] == [
        (name, kind, 10) for name in ("turnpike", "vllm") for kind in (CHATS, ADAPTED)
    ]
    for log in (tmp_path / "turnpike.log", tmp_path / "vllm.log"):
        asked = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("adapter-")]
        warm_up = 12
        assert sorted(asked[warm_up:]) == sorted(names[number % 6] for number in range(10))
    text = "\n".join(table.describe([run], ()))
    assert "of the base's" in text
    assert "asked 0.95" in text


@pytest.mark.usefixtures("faked")
def test_the_command_measures_what_is_asked_and_reports_all_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {name: lambda name=name: part(name, "turnpike", "vllm") for name in ("tenth", "half")}
    monkeypatch.setattr(command, "PARTS", parts)
    monkeypatch.setattr(command, "measured_limits", lambda: LIMITS)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["peers", *arguments, "--results", str(tmp_path)])
        command.main()
        return capsys.readouterr().out

    assert "## Tiny" in run("--part", "tenth", "--levels", "4", "--passes", "1")
    run("--part", "half", "--quick", "--only", "vllm")
    first, second = load_runs(tmp_path)
    assert {each.contestant for each in first.samples} == {"vllm"}
    assert {(each.contestant, each.level) for each in second.samples} == {("turnpike", 4), ("vllm", 4)}
    text = run("--report")
    assert text.count("## Tiny") == 2
    assert "| 4 | turnpike / vllm | " in text


def test_a_server_that_does_not_come_up_is_left_out_by_its_own_words(
    tmp_path: Path, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Launch([sys.executable, "-c", "raise SystemExit('no such model')"], free_port())
    monkeypatch.setattr(Contestant, "missing", lambda contestant: None)
    monkeypatch.setattr(systems, "_LAUNCHES", {"vllm": lambda contestant, setting: broken})
    run = run_part(part("tenth", "vllm"), Plan((1,), passes=1), setting, LIMITS, tmp_path)
    assert run.left_out == {"vllm": "no such model"}
    assert run.samples == []
    with pytest.raises(ServerFailed, match="no such model"), running_server(broken, tmp_path / "log"):
        pass


def test_a_server_that_is_stopped_takes_no_processor_and_goes_on(tmp_path: Path) -> None:
    with running_server(fake(), tmp_path / "log") as server:
        process = server._process

        def await_state(states: str) -> None:
            deadline = time.monotonic() + 10
            while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] not in states:
                assert time.monotonic() < deadline
                time.sleep(0.001)

        server.stop()
        await_state("T")
        server.go_on()
        await_state("RS")
        server.stop()
    assert process.returncode is not None


def test_the_command_ends_its_servers_where_it_is_ended_itself(tmp_path: Path) -> None:
    """The server notes its own number, and never answers."""
    written = tmp_path / "pid"
    program = f"""
import sys
from pathlib import Path
from benchmarks.peers import __main__ as command
from benchmarks.peers.server import Launch, running
server = "import os, time; open({str(written)!r}, 'w').write(str(os.getpid())); time.sleep(99)"
def prepare():
    with running(Launch([sys.executable, "-c", server], {free_port()}), Path({str(tmp_path / "log")!r})):
        pass
command.prepare = prepare
sys.argv[1:] = ["--prepare"]
command.main()
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while not (written.exists() and written.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{written.read_text()}").exists()


def test_a_peer_that_is_not_installed_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.vllm.root", lambda: tmp_path)
    monkeypatch.setattr("benchmarks.peers.llama_cpp.root", lambda: tmp_path)
    for system in ("vllm", "llama.cpp"):
        assert "--prepare" in (Contestant(system, system, tmp_path).missing() or "")
    assert Contestant("turnpike", "turnpike", tmp_path).missing() is None


def test_an_installation_goes_on_where_it_failed(tmp_path: Path) -> None:
    done: list[str] = []
    steps: list[Any] = [
        ("one", lambda folder: done.append("one")),
        ("two", lambda folder: environment.call(folder, sys.executable, "-c", "print('why'); raise SystemExit(3)")),
    ]
    with pytest.raises(InstallError, match="status 3"):
        environment.install(tmp_path / "peer", steps)
    assert "why" in (tmp_path / "peer" / "install.log").read_text()
    assert not environment.installed(tmp_path / "peer", steps)
    steps[1] = ("two", lambda folder: done.append("two"))
    environment.install(tmp_path / "peer", steps)
    assert done == ["one", "two"]
    assert environment.installed(tmp_path / "peer", steps)


def test_llama_cpp_is_not_built_for_amx() -> None:
    assert llama_cpp._processor({"avx2", "avx512_bf16"}) == ["GGML_NATIVE=ON"]
    options = llama_cpp._processor({"avx2", "avx512f", "avx512_bf16", "amx_int8", "amx_tile"})
    assert options == ["GGML_NATIVE=OFF", "GGML_AVX2=ON", "GGML_AVX512=ON", "GGML_AVX512_BF16=ON"]


def test_prompts_are_of_their_lengths_and_of_their_seed() -> None:
    one, other = chats(200, letters, "a"), chats(200, letters, "b")
    assert chats(200, letters, "a") == one
    assert all(mine.text != theirs.text for mine, theirs in zip(one, other, strict=True))
    assert all(16 <= len(each.text) <= 512 and 8 <= each.max_tokens <= 256 for each in one)
    assert 90 < sum(len(each.text) for each in one) / 200 < 160
    assert len(words(20, random.Random(0)).split()) == 21


def test_one_prefix_is_all_that_chats_share() -> None:
    for shared in (True, False):
        prompts = prefixed_chats(5, letters, "a", shared=shared)
        systems_said = {each.messages[0]["content"] for each in prompts if each.messages}
        assert len(systems_said) == (1 if shared else 5)
        assert {len(text) for text in systems_said} == {512}
        assert len({each.messages[1]["content"] for each in prompts if each.messages}) == 5


def test_figures_of_a_load() -> None:
    outcomes = [
        Outcome(0.0, 0.0, 1.0, FINISHED, (0.1, 0.2, 0.3), prompt_tokens=10, usage_tokens=3),
        Outcome(0.0, 0.0, 1.0, FINISHED, (0.3, 0.5, 0.7), prompt_tokens=20, usage_tokens=3),
        Outcome(0.0, 0.0, 1.0, "connection lost"),
    ]
    found = figures(outcomes[:2], asked_tokens=7, seconds=2.0)
    assert (found.output_tokens_s, found.total_tokens_s, found.failed, found.short_tokens) == (3.0, 18.0, 0, 1)
    assert (found.ttft_p50_ms, found.tpot_p50_ms) == pytest.approx((200.0, 150.0))
    assert figures(outcomes, asked_tokens=9, seconds=2.0).failed == 1
    with pytest.raises(ValueError, match="connection lost"):
        figures(outcomes[2:], asked_tokens=3, seconds=1.0)


def test_ratios_are_of_pairs_of_one_pass() -> None:
    """The machine was half as fast in the second pass, and of the third there is one half."""
    run = run_of(
        *(Sample("turnpike", 1, 0, "chats", made(30)), Sample("vllm", 1, 0, "chats", made(20))),
        *(Sample("turnpike", 1, 1, "chats", made(15)), Sample("vllm", 1, 1, "chats", made(10))),
        Sample("turnpike", 1, 2, "chats", made(90)),
    )
    assert ratio([run], "output_tokens_s", "turnpike", "vllm", 1) == pytest.approx(1.5)
    assert ratio([run], "output_tokens_s", "turnpike", "llama.cpp", 1) is None
    whole = median([run], "turnpike", 1)
    assert (whole.output_tokens_s, whole.requests) == (30, 12)
    assert median([run], "turnpike", 4) is None


def test_the_table_says_what_is_met() -> None:
    run = run_of(
        *(Sample("turnpike", 1, 0, "chats", made(30)), Sample("vllm", 1, 0, "chats", made(20))),
        *(Sample("turnpike", 4, 0, "chats", made(30, ttft_ms=20.0)), Sample("vllm", 4, 0, "chats", made(40))),
        *(Sample("turnpike", 16, 0, "chats", made(90_000)), Sample("vllm", 16, 0, "chats", made(90_000))),
    )
    asked = (Asked("turnpike", "vllm", 1, 1.4), Asked("turnpike", "vllm", 4, 1.25), Asked("turnpike", "x", 1, 9.0))
    text = "\n".join(table.describe([run], asked))
    assert "| 1 | turnpike / vllm | 1.50 | 1.40: met | 1.00 (at most 1: met) |" in text
    assert "| 4 | turnpike / vllm | 0.75 | 1.25: MISSED | 2.00 (at most 1: MISSED) |" in text
    assert "| 1 | turnpike | 30.0 | 60 | 10 | 20 | 5.0 | 0.01 (asked 0.8: MISSED) | 0.00 | 0 |" in text
    assert "| 16 | turnpike | 90000.0 | 180000 | 10 | 20 | 5.0 |  | 0.90 (asked 0.75: met) | 0 |" in text
    assert "| 16 | vllm | 90000.0 | 180000 | 10 | 20 | 5.0 |  | 0.90 | 0 |" in text
    assert "| turnpike | 1.0 (at most 5: met) | 100 | 200 | 40 | 150 (at most 400: met) |  |" in text
    assert "| vllm | 1.0 | 100 | 200 |  |  |  |" in text


def test_the_table_says_what_is_missed_at_the_start_and_in_memory() -> None:
    run = run_of(Sample("turnpike", 1, 0, "chats", made(30)), names=("turnpike",))
    run.memory = [Memory("turnpike", 5.5, 100.0, 500.0, 40.0)]
    text = "\n".join(table.describe([run], ()))
    assert "| turnpike | 5.5 (at most 5: MISSED) | 100 | 500 | 40 | 450 (at most 400: MISSED) |  |" in text


def test_what_turnpike_holds_in_keys_and_values_is_what_its_metrics_say(tmp_path: Path) -> None:
    """Two layers' keys and values of two heads of 16 numbers in bf16: 4 KiB a block of 16 tokens."""
    config = TINY | {"model_type": "qwen3"}
    folder = models.prepare("tiny", config, tmp_path).folder
    with running_server(fake(), tmp_path / "log") as server:
        assert Contestant("turnpike", "turnpike", folder).kv_mib(server) == 300 * 4096 / (1 << 20)
        assert Contestant("vllm", "vllm", folder).kv_mib(server) is None


def test_what_wakes_a_server_is_none_of_what_is_measured() -> None:
    (one,), (other,) = load.waking(letters, "a"), load.waking(letters, "b")
    assert one.text != other.text
    assert load.waking(letters, "a") == [one]


def test_the_file_of_smollm2_has_bounds_of_its_own() -> None:
    samples = (
        Sample("turnpike", 1, 0, "chats", made(30, ttft_ms=50.0)),
        Sample("llama.cpp", 1, 0, "chats", made(20, ttft_ms=100.0)),
    )
    run = run_of(*samples, part="smollm2", names=("turnpike", "llama.cpp"))
    text = "\n".join(table.describe([run], (Asked("turnpike", "llama.cpp", 1, 1.1),)))
    assert "0.50 (at most 0.6: met)" in text
    assert "1.00 (at most 0.5: MISSED)" in text


def test_what_a_prefix_gains() -> None:
    run = run_of(
        *(Sample("turnpike", 8, 0, OWN, made(50, 400.0)), Sample("turnpike", 8, 0, SHARED, made(200, 80.0))),
        part="prefix",
        names=("turnpike",),
    )
    assert gain([run], "output_tokens_s", "turnpike", 8, (OWN, SHARED)) == pytest.approx(4.0)
    text = "\n".join(table.describe([run], ()))
    assert "| turnpike | 50 | 400 | 200 | 80 | 4.00 (asked 3.5: met) | 5.00 |" in text


@pytest.mark.parametrize("model_type", ["qwen3", "llama"])
def test_a_folder_and_its_gguf_file_are_the_same_model(tmp_path: Path, model_type: str) -> None:
    config = TINY | {"model_type": model_type, "tie_word_embeddings": model_type == "qwen3"}
    config |= {"architectures": ["Qwen3ForCausalLM" if model_type == "qwen3" else "LlamaForCausalLM"]}
    checkpoint = models.prepare("tiny", config, tmp_path)
    folder, file = open_checkpoint(checkpoint.folder), open_checkpoint(checkpoint.bf16)
    assert dataclasses.replace(folder.config, eos_token_ids=file.config.eos_token_ids) == file.config
    ours, theirs = (dict(each.tensors(FLOAT32)) for each in (folder, file))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    written = checkpoint.q4_0.stat()
    assert written.st_size < 0.6 * checkpoint.bf16.stat().st_size
    models.prepare("tiny", config, tmp_path)
    assert checkpoint.q4_0.stat().st_mtime_ns == written.st_mtime_ns


def test_a_letter_is_a_token_and_every_token_has_a_text() -> None:
    tokenizer = models._tokenizer(400)
    assert len(tokenizer.encode("user: abc").ids) == 9
    assert all(tokenizer.decode([token]) for token in range(len(models._SPECIAL), 400))


@pytest.mark.parametrize("tied", [True, False])
def test_answers_have_text_alone(tmp_path: Path, tied: bool) -> None:
    """Tokens without text of their own score 0, in every form of the weights, and some other token always more."""
    config = TINY | {"tie_word_embeddings": tied, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    checkpoint = models.prepare("tiny", config, tmp_path)
    tokenizer = models._tokenizer(320)
    silent = [token for token in range(320) if token < 3 or "\ufffd" in tokenizer.decode([token])]
    assert len(silent) == 3 + 128
    for path in (checkpoint.folder, checkpoint.bf16, checkpoint.q4_0):
        weights = dict(open_checkpoint(path).tensors(FLOAT32))
        for name in ("model.embed_tokens.weight",) if tied else ("model.embed_tokens.weight", "lm_head.weight"):
            zero = ~weights[name].any(axis=1)
            assert zero.nonzero()[0].tolist() == silent
