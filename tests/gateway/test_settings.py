import json
import re
from pathlib import Path

import pytest

import engine.config
import gateway.config.settings
from engine.errors import InvalidParameter
from engine.request import BATCH, PREMIUM, STANDARD
from engine.sampling_defaults import SAMPLING_DEFAULTS, SamplingDefaults
from gateway.config.engine_classes import engine_classes_of
from gateway.config.listen_address import StatedServerTLS
from gateway.config.setting_sources import SettingsError
from gateway.config.settings import load_settings
from gateway.config.store_urls import normalise_database_url

SECRET = "s3cret-s3cret-s3cret-s3cret-s3cret"


pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "share" / "turnpike"
    folder.mkdir(parents=True)
    return folder


def test_defaults(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.data_dir == tmp_path / "share" / "turnpike"
    assert settings.models_dir == tmp_path / "cache" / "turnpike" / "models"
    url = settings.database_url.get_secret_value()
    assert url == f"sqlite+aiosqlite:///{tmp_path}/share/turnpike/turnpike.db"
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert (settings.max_body_bytes, settings.max_json_depth) == (4 * 1024**2, 64)
    assert settings.models == {}
    assert settings.key_pepper is None
    assert settings.journal_path == settings.data_dir / "usage" / "journal.db"
    assert settings.kafka_url is None
    assert settings.analytics_url.get_secret_value() == f"chdb://{settings.data_dir}/analytics"


def test_a_relative_xdg_directory_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_settings().data_dir == tmp_path / ".local" / "share" / "turnpike"


def test_the_order_of_sources(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    (data_dir / "turnpike.toml").write_text("port = 1\nthreads = 1\nmax_running = 1\nmax_json_depth = 10\n")
    Path("turnpike.toml").write_text("port = 2\nthreads = 2\nmax_running = 2\n")
    monkeypatch.setenv("TURNPIKE_PORT", "3")
    monkeypatch.setenv("TURNPIKE_THREADS", "3")
    settings = load_settings(port=4, threads=None)
    assert (settings.port, settings.threads, settings.max_running, settings.max_json_depth) == (4, 3, 2, 10)


def test_the_data_directory_is_found_by_the_same_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("flag", "env", "file"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "turnpike.toml").write_text(f"host = '{name}'")
    Path("turnpike.toml").write_text(f"data_dir = '{tmp_path / 'file'}'")
    assert load_settings().host == "file"
    monkeypatch.setenv("TURNPIKE_DATA_DIR", str(tmp_path / "env"))
    assert load_settings().host == "env"
    settings = load_settings(data_dir=tmp_path / "flag")
    assert settings.host == "flag"
    assert str(tmp_path / "flag") in settings.database_url.get_secret_value()


def test_one_file_may_be_both(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    monkeypatch.chdir(data_dir)
    Path("turnpike.toml").write_text(f"data_dir = '{data_dir}'\nport = 5")
    assert load_settings().port == 5


def test_a_table_replaces_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("turnpike.toml").write_text("[models]\nsmall = '/models/small'\n")
    assert load_settings().models == {"small": Path("/models/small")}
    monkeypatch.setenv("TURNPIKE_MODELS", json.dumps({"large": "~/large"}))
    assert load_settings().models == {"large": Path.home() / "large"}
    assert load_settings(models={"one": "one.gguf"}).models == {"one": Path.cwd() / "one.gguf"}


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPIKE_PORT", "")
    monkeypatch.setenv("TURNPIKE_KEY_PEPPER", "")
    assert load_settings().port == 8080
    assert load_settings().key_pepper is None


def test_sizes_have_units() -> None:
    assert load_settings(kv_cache_bytes="2GiB").kv_cache_bytes == 2 * 1024**3
    assert load_settings(max_body_bytes=2048).max_body_bytes == 2048


@pytest.mark.parametrize("place", ["here", "data_dir"])
def test_an_unknown_key_is_refused_by_name(place: str, data_dir: Path) -> None:
    path = Path("turnpike.toml") if place == "here" else data_dir / "turnpike.toml"
    path.write_text("prot = 8081\n")
    with pytest.raises(SettingsError, match=r"turnpike\.toml: .*\bprot\b"):
        load_settings()


def test_the_data_directory_cannot_move_itself(data_dir: Path) -> None:
    (data_dir / "turnpike.toml").write_text("data_dir = '/elsewhere'")
    with pytest.raises(SettingsError, match="data_dir"):
        load_settings()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"port = ", "is not TOML"),
        (b"\xff", "cannot be read"),
        (b"port = 99999", "port: .*65535"),
        (b"data_dir = 3", "data_dir: "),
        (b"[models]\n'a b' = '/x'", "models: .*'a b'"),
        (b"device = 'tpu'", "device: "),
        (b"dtype = 'int8'", "dtype: "),
        (b"kv_cache_bytes = 10", "kv_cache_bytes: "),
        (b"max_running = 0", "max_running: "),
        (b"grpc_listen = '9090'", "grpc_listen: .*host:port"),
        (b"grpc_tls = 'on'", "grpc_tls"),
    ],
)
def test_a_bad_file_is_one_line_that_names_the_key(content: bytes, complaint: str) -> None:
    Path("turnpike.toml").write_bytes(content)
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    assert re.search(complaint, str(refusal.value))
    assert "\n" not in str(refusal.value)


def test_a_variable_that_is_not_json_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPIKE_MODELS", "{nonsense")
    with pytest.raises(SettingsError, match="models"):
        load_settings()


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(
        key_pepper=SECRET,
        database_url=f"postgresql://u:{SECRET}@db/turnpike",
        redis_url=f"redis://:{SECRET}-too@cache/0",
        kafka_url=f"kafkas://u:{SECRET}-three@one,two:9093",
        analytics_url=f"https://u:{SECRET}-four@clickhouse/usage",
    )
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert SECRET not in shown
    assert set(settings.secret_values()) == {SECRET, *(f"{SECRET}-{which}" for which in ("too", "three", "four"))}


@pytest.mark.parametrize(
    "setting",
    [
        {"database_url": f"mysql://u:{SECRET}@db"},
        {"key_pepper": "s3cret-short"},
        {"redis_url": f"http://:{SECRET}@cache"},
        {"redis_url": f"redis://cache:{SECRET}"},
        {"redis_url": f"redis://cache/{SECRET}"},
        {"kafka_url": f"redis://u:{SECRET}@broker"},
        {"kafka_url": f"kafka://u:{SECRET}@broker:{SECRET}"},
        {"kafka_url": f"kafka://u:{SECRET}@broker/{SECRET}"},
        {"kafka_url": f"kafka://u:{SECRET}@broker?sasl={SECRET}"},
        {"kafka_url": f"kafka://u:{SECRET}@one,,two"},
    ],
)
def test_errors_do_not_repeat_secrets(setting: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as refusal:
        load_settings(**setting)
    assert "s3cret" not in str(refusal.value)
    assert refusal.value.__suppress_context__


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1


@pytest.mark.parametrize(
    ("stated", "meant"),
    [
        ("sqlite:///a.db", "sqlite+aiosqlite:///a.db"),
        ("sqlite:////var/a.db", "sqlite+aiosqlite:////var/a.db"),
        ("sqlite+aiosqlite:///a.db", "sqlite+aiosqlite:///a.db"),
        ("postgres://u@h/d", "postgresql+asyncpg://u@h/d"),
        ("postgresql://u:p@h:1/d", "postgresql+asyncpg://u:p@h:1/d"),
        ("postgresql+asyncpg://u@h/d", "postgresql+asyncpg://u@h/d"),
        ("postgresql://u@h/d?a=b&sslmode=require", "postgresql+asyncpg://u@h/d?a=b&ssl=require"),
    ],
)
def test_urls_get_the_async_driver(stated: str, meant: str) -> None:
    assert normalise_database_url(stated) == meant
    assert normalise_database_url(meant) == meant


@pytest.mark.parametrize(
    "url", ["", "turnpike.db", "mysql://h/d", "postgresql+psycopg://h/d", "sqlite://", "sqlite:///:memory:"]
)
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="sql"):
        normalise_database_url(url)


class TestServiceClasses:
    def test_the_default_ones(self) -> None:
        classes = load_settings().service_classes
        assert list(classes) == ["premium", "standard", "batch"]
        assert [each.itl_target_ms for each in classes.values()] == [50, 100, None]
        assert engine_classes_of(load_settings()) == (PREMIUM, STANDARD, BATCH)

    def test_from_a_file_they_replace_the_default_ones(self) -> None:
        Path("turnpike.toml").write_text(
            "[service_classes.gold]\npriority = 1\nreserved_fraction = 0.4\nttft_target_ms = 300\nmax_wait_ms = 2000\n"
            "itl_target_ms = 40\n"
            "[service_classes.bulk]\npriority = 9\nstep_share = 0.1\nweight = 2.0\ncontext_tokens = 8192\n"
        )
        gold, bulk = load_settings().service_classes.values()
        assert (gold.priority, gold.reserved_fraction, gold.ttft_target_ms, gold.max_wait_ms) == (1, 0.4, 300, 2000)
        assert (gold.itl_target_ms, bulk.itl_target_ms) == (40, None)
        assert (bulk.priority, bulk.step_share, bulk.weight, bulk.context_tokens) == (9, 0.1, 2.0, 8192)

    def test_from_a_variable_as_json(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TURNPIKE_SERVICE_CLASSES", json.dumps({"only": {"priority": 5}}))
        assert list(load_settings().service_classes) == ["only"]
        monkeypatch.setenv("TURNPIKE_SERVICE_CLASSES", "")
        assert list(load_settings().service_classes) == ["premium", "standard", "batch"]

    @pytest.mark.parametrize(
        ("stated", "complaint"),
        [
            ("gold", "service_classes: .*JSON"),
            ("[" * 100_000, "service_classes: .*JSON"),
            ("[]", "service_classes: "),
            ("{}", "service_classes: "),
            ('{"gold": {}}', "service_classes.gold.priority: "),
            ('{"gold": {"priority": "1"}}', "service_classes.gold.priority: "),
            ('{"gold": {"priority": 1, "wieght": 2}}', "service_classes.gold.wieght: "),
            ('{"gold": {"priority": 1, "weight": NaN}}', "service_classes.gold.weight: "),
            ('{"gold": {"priority": 1, "itl_target_ms": 0}}', "service_classes.gold.itl_target_ms: "),
            ('{"gold": {"priority": 1, "step_share": 0}}', "service_classes.gold.step_share: "),
            ('{"gold": {"priority": 1, "reserved_fraction": 1}}', "service_classes.gold.reserved_fraction: "),
            ('{"gold": {"priority": 1}, "gold": {"priority": 2}}', "service_classes: .*'gold' .*twice"),
            ('{"gold": {"priority": 1}, "tin": {"priority": 1}}', "service_classes: .*gold .*tin .*priority 1"),
            ('{"Gold": {"priority": 1}}', "service_classes: .*'Gold'"),
            ('{"abcdefghijklmnopq": {"priority": 1}}', "service_classes: .*16 characters"),
            ('{"flex": {"priority": 1}}', "service_classes: .*flex"),
            (
                '{"a": {"priority": 1, "reserved_fraction": 0.5}, "b": {"priority": 2, "reserved_fraction": 0.45}}',
                r"service_classes: reserved_fraction .*0\.95.*0\.9",
            ),
        ],
    )
    def test_what_cannot_be_is_named(self, stated: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TURNPIKE_SERVICE_CLASSES", stated)
        with pytest.raises(SettingsError) as refused:
            load_settings()
        assert re.search(complaint, str(refused.value))
        assert "\n" not in str(refused.value)

    def test_the_example_in_the_documentation_works(self) -> None:
        text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
        example = text.partition("```toml\n[service_classes.")[2].partition("```")[0]
        Path("turnpike.toml").write_text(f"[service_classes.{example}")
        assert list(load_settings().service_classes) == ["gold", "standard", "batch"]

    def test_the_longest_name_fits_the_store(self) -> None:
        from gateway.tenancy.tables import TenantRow

        name = "a" * TenantRow.__table__.c.tier.type.length  # type: ignore[attr-defined]
        assert list(load_settings(service_classes={name: {"priority": 1}}).service_classes) == [name]
        with pytest.raises(SettingsError):
            load_settings(service_classes={name + "a": {"priority": 1}})


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ({"large": "absent"}, "small_models: .*'absent'"),
        ({"large": "large"}, "small_models: 'large'.*'large'"),
        ({"large": "small", "small": "tiny"}, "small_models: 'small'.*'large'"),
    ],
)
def test_a_pair_of_models_is_two_served_ones(tmp_path: Path, pairs: dict[str, str], complaint: str) -> None:
    models = dict.fromkeys(("large", "small", "tiny"), tmp_path)
    assert load_settings(models=models, small_models={"large": "small"}).small_models == {"large": "small"}
    with pytest.raises(SettingsError) as caught:
        load_settings(models=models, small_models=pairs)
    assert re.match(complaint, str(caught.value))


def test_speculation_with_a_small_model_needs_one(tmp_path: Path) -> None:
    models = dict.fromkeys(("large", "small"), tmp_path)
    assert load_settings(models=models, small_models={"large": "small"}, speculation="draft").speculation == "draft"
    with pytest.raises(SettingsError, match=r"speculation: .*small_models"):
        load_settings(models=models, speculation="draft")


@pytest.mark.parametrize(
    ("versions", "complaint"),
    [
        ({"m": {"absent": 1}}, "model_versions: .*'absent'"),
        ({"m": {"large": 0}}, "model_versions: .*'m' .*weights"),
        ({"m": {"large": 1, "small": -1}}, "model_versions: .*'m' .*weights"),
        ({"m": {"large": float("inf")}}, "model_versions: .*'m' .*weights"),
        ({"m": {"large": float("nan")}}, "model_versions: .*'m' .*weights"),
        ({"m": {}}, "model_versions: .*'m' .*weights"),
        ({"a b": {"large": 1}}, "model_versions: .*'a b'"),
        ({"auto": {"large": 1}}, "model_versions: .*'auto'"),
    ],
)
def test_versions_have_served_models(tmp_path: Path, versions: dict[str, dict[str, float]], complaint: str) -> None:
    models = dict.fromkeys(("large", "small"), tmp_path)
    good = {"large": {"large": 95, "small": 5}, "assistant": {"small": 0.5, "large": 0}}
    assert load_settings(models=models, model_versions=good).model_versions == good
    with pytest.raises(SettingsError) as caught:
        load_settings(models=models, model_versions=versions)
    assert re.match(complaint, str(caught.value))


@pytest.mark.parametrize("name", ["auto", "auto:large"])
def test_no_model_may_have_a_name_that_routing_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=r"models: .*'auto"):
        load_settings(models={name: tmp_path})


def test_as_many_drafts_may_be_set_as_the_engine_takes() -> None:
    assert gateway.config.settings.MOST_DRAFTS == engine.config.MOST_DRAFTS


def test_as_many_ranks_may_be_set_as_the_engine_takes() -> None:
    assert gateway.config.settings.MAX_RANKS == engine.config.MAX_RANKS
    assert load_settings(tensor_parallel="auto").tensor_parallel == "auto"
    assert load_settings(tensor_parallel="2", pipeline_parallel=4).tensor_parallel == 2
    for stated in ({"tensor_parallel": 0}, {"tensor_parallel": "some"}, {"pipeline_parallel": 65}):
        with pytest.raises(SettingsError, match=next(iter(stated))):
            load_settings(**stated)


@pytest.mark.parametrize("name", SAMPLING_DEFAULTS)
@pytest.mark.parametrize("value", [-3, -2, -1, 0, 1, 2, 3, 10, 11])
def test_sampling_defaults_have_the_bounds_of_the_engine(name: str, value: float) -> None:
    stated = {"tiny": {name: value}}
    try:
        SamplingDefaults(**stated["tiny"])
    except InvalidParameter:
        with pytest.raises(SettingsError, match=f"sampling_defaults.tiny.{name}"):
            load_settings(sampling_defaults=stated)
    else:
        assert getattr(load_settings(sampling_defaults=stated).sampling_defaults["tiny"], name) == value


def test_an_unknown_sampling_default_is_named() -> None:
    with pytest.raises(SettingsError, match=r"sampling_defaults.tiny.temperatur: unknown key"):
        load_settings(sampling_defaults={"tiny": {"temperatur": 1}})


def test_aliases(tmp_path: Path) -> None:
    models = {"large": tmp_path}
    assert load_settings(models=models, aliases={"gpt-4o": "large"}).aliases == {"gpt-4o": "large"}
    for aliases in ({"large": "large"}, {"a": "b", "b": "large"}, {"auto": "large"}, {"a b": "large"}):
        with pytest.raises(SettingsError, match=r"^aliases: "):
            load_settings(models=models, aliases=aliases)


@pytest.mark.parametrize(
    ("stated", "complaint"),
    [
        ({"invoice_tax_percent": "101"}, "invoice_tax_percent: .*0 to 100"),
        ({"invoice_tax_percent": "8.8755"}, "invoice_tax_percent: .*three decimals"),
        ({"invoice_payment_days": -1}, "invoice_payment_days"),
        ({"issuer_name": "a\nb"}, "issuer_name: .*printable"),
        ({"issuer_address": "a\n" * 9}, "issuer_address: .*8 lines"),
        ({"issuer_tax_id": "x" * 65}, "issuer_tax_id: .*64"),
    ],
)
def test_terms_of_invoices_that_cannot_be_printed_are_refused(stated: dict[str, object], complaint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(**stated)
    assert re.match(complaint, str(caught.value))


def test_the_grpc_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().grpc_listen is None
    monkeypatch.setenv("TURNPIKE_GRPC_TLS", "off")
    assert load_settings().grpc_tls == "off"
    monkeypatch.setenv("TURNPIKE_GRPC_TLS", '{"certificate": "a.pem", "key": "a.key"}')
    assert isinstance(load_settings().grpc_tls, StatedServerTLS)
    monkeypatch.delenv("TURNPIKE_GRPC_TLS")
    assert load_settings(grpc_listen="[::1]:9090").grpc_listen == "[::1]:9090"
    Path("turnpike.toml").write_text("grpc_tls = { certificate = 'a.pem', key = 'a.key' }")
    stated = load_settings().grpc_tls
    assert isinstance(stated, StatedServerTLS)
    assert (stated.certificate, stated.key) == (Path("a.pem"), Path("a.key"))
    Path("turnpike.toml").write_text("grpc_tls = 'off'")
    assert load_settings().grpc_tls == "off"
