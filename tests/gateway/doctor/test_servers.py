"""Redis, Kafka and ClickHouse: real ones, and what they may say."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from gateway.analytics import open_analytics
from gateway.analytics.schema import migrate
from gateway.config.settings import load_settings
from gateway.doctor import Finding, State, clickhouse, kafka, redis
from gateway.doctor.clock import skew_s, with_skew
from gateway.doctor.finding import ok
from tests.support.kafka_server import KafkaServer
from tests.support.servers import RedisServer, running_redis

pytestmark = pytest.mark.usefixtures("no_settings")

HEALTHY = {
    "redis_version": "7.0.15",
    "role": "master",
    "maxmemory_policy": "noeviction",
    "rdb_last_bgsave_status": "ok",
}


class TestRedis:
    def found(self, tmp_path: Path, **settings: object) -> Finding:
        """Of the one that limits are in."""
        return next(redis.redis(load_settings(data_dir=tmp_path, **settings)))

    def test_a_real_one(self, redis_server: RedisServer, tmp_path: Path) -> None:
        found = self.found(tmp_path, redis_url=redis_server.url)
        assert (found.state, "noeviction" in found.detail) == (State.OK, True), found

    def test_none_and_one_that_is_away(self, tmp_path: Path) -> None:
        assert self.found(tmp_path).state is State.OK
        found = self.found(tmp_path, redis_url="redis://:s3cret@127.0.0.1:1")
        assert (found.state, "s3cret" in repr(found)) == (State.FAILURE, False)

    @pytest.mark.parametrize(
        ("info", "state", "words"),
        [
            ({}, State.OK, "restart"),
            ({"aof_enabled": 1}, State.OK, "append-only file"),
            ({"maxmemory_policy": "allkeys-lru", "maxmemory": 1}, State.WARNING, "allkeys-lru"),
            ({"maxmemory_policy": "volatile-ttl", "maxmemory": 0}, State.WARNING, "would be"),
            ({"redis_version": "6.2.1"}, State.FAILURE, "too old"),
            ({"redis_version": "10.0.0"}, State.OK, "10.0.0"),
            ({"role": "slave"}, State.FAILURE, "replica"),
            ({"rdb_last_bgsave_status": "err"}, State.WARNING, "snapshot"),
        ],
    )
    def test_what_it_may_say(self, info: dict[str, Any], state: State, words: str) -> None:
        found = redis.judged(HEALTHY | info)
        assert (found.state, words in found.detail) == (state, True)

    def test_one_for_limits_and_sessions_is_warned_of(self, redis_server: RedisServer, tmp_path: Path) -> None:
        other_name = redis_server.url.replace("127.0.0.1", "localhost").replace("/0", "/1")
        for settings in ({}, {"sessions_redis_url": other_name}):
            findings = redis.redis(load_settings(data_dir=tmp_path, redis_url=redis_server.url, **settings))
            assert [each.state for each in findings] == [State.OK, State.WARNING]

    def test_two_of_them(self, redis_server: RedisServer, tmp_path: Path) -> None:
        with running_redis() as other:
            urls = {"redis_url": redis_server.url, "sessions_redis_url": other.url}
            _, of_sessions = redis.redis(load_settings(data_dir=tmp_path, **urls))
            assert (of_sessions.state, "without maxmemory" in of_sessions.detail) == (State.WARNING, True)
            with Redis.from_url(other.url) as client:
                client.config_set("maxmemory", "100mb")
            _, of_sessions = redis.redis(load_settings(data_dir=tmp_path, **urls))
            assert of_sessions.state is State.OK
        _, of_sessions = redis.redis(load_settings(data_dir=tmp_path, **urls))
        assert of_sessions.state is State.FAILURE

    @pytest.mark.parametrize("info", [{"redis_version": "6.2.1"}, {"role": "slave"}])
    def test_one_of_sessions_that_cannot_be_used(self, info: dict[str, Any]) -> None:
        assert redis.judged_for_sessions(HEALTHY | info, {}).state is State.FAILURE


class TestKafka:
    def found(self, tmp_path: Path, **settings: object) -> Finding:
        (found,) = kafka.kafka(load_settings(data_dir=tmp_path, **settings))
        return found

    def test_a_real_one_without_the_topic_and_with_it(self, kafka_server: KafkaServer, tmp_path: Path) -> None:
        settings = {"kafka_url": f"kafka://{kafka_server.bootstrap}", "kafka_topic": "doctor.usage"}
        found = self.found(tmp_path, **settings)
        assert (found.state, found.remedy) == (State.FAILURE, "turnpike kafka create-topic")
        kafka_server.create_topic("doctor.usage", partitions=3)
        found = self.found(tmp_path, **settings)
        assert found.state is State.OK
        assert all(part in found.detail for part in ("1 broker", "doctor.usage", "3 partitions"))

    def test_none_and_one_that_is_away(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gateway.metering.kafka_cluster.BOOTSTRAP_TIMEOUT_MS", 200)
        assert self.found(tmp_path).state is State.OK
        found = self.found(tmp_path, kafka_url="kafka://u:s3cret@127.0.0.1:1")
        assert (found.state, "s3cret" in repr(found)) == (State.FAILURE, False)

    @pytest.mark.parametrize(
        ("leader", "in_sync", "state"), [(1, [1, 2], State.OK), (1, [1], State.WARNING), (-1, [], State.FAILURE)]
    )
    def test_what_it_may_say(self, leader: int, in_sync: Sequence[int], state: State) -> None:
        good = {"leader_id": 1, "replica_nodes": [1, 2], "isr_nodes": [1, 2]}
        other = {"leader_id": leader, "replica_nodes": [1, 2], "isr_nodes": in_sync}
        assert kafka.judged(2, "t", [good, other]).state is state


class TestClickHouse:
    def found(self, tmp_path: Path, **settings: object) -> Finding:
        (found,) = clickhouse.clickhouse(load_settings(data_dir=tmp_path, **settings))
        return found

    def test_a_real_one_before_and_after_its_tables(self, clickhouse_url: str, tmp_path: Path) -> None:
        async def prepare() -> None:
            analytics = open_analytics(clickhouse_url)
            await migrate(analytics)
            await analytics.aclose()

        found = self.found(tmp_path, analytics_url=clickhouse_url)
        assert (found.state, "none" in found.detail) == (State.WARNING, True), found
        asyncio.run(prepare())
        assert self.found(tmp_path, analytics_url=clickhouse_url).state is State.OK

    def test_one_inside_is_left_alone(self, tmp_path: Path) -> None:
        assert self.found(tmp_path / "data").state is State.OK
        assert not (tmp_path / "data").exists()

    def test_one_that_is_away(self, tmp_path: Path) -> None:
        found = self.found(tmp_path, analytics_url="http://u:s3cret@127.0.0.1:1/d")
        assert (found.state, "s3cret" in repr(found)) == (State.FAILURE, False)

    def test_tables_of_a_newer_program(self) -> None:
        assert clickhouse.judged("26.1", 9999).state is State.FAILURE


class TestClock:
    @pytest.mark.parametrize(("server_s", "skew"), [(10.0, 0.0), (10.5, 0.0), (11.0, 0.0), (13.5, 2.5), (8.0, -2.0)])
    def test_only_what_the_way_there_cannot_explain_counts(self, server_s: float, skew: float) -> None:
        assert skew_s(server_s, asked_s=10.0, answered_s=11.0) == skew

    def test_a_warning_from_a_second_on(self) -> None:
        fine = ok("Redis", "7.0")
        assert with_skew(fine, 0.9) is fine
        found = with_skew(fine, -1.5)
        assert (found.state, "1.5 s behind" in found.detail) == (State.WARNING, True)
        assert "NTP" in found.remedy
        assert with_skew(redis.judged(HEALTHY | {"role": "slave"}), 2.0).state is State.FAILURE


def test_what_servers_say_is_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.doctor import examination

    monkeypatch.setattr(examination, "CHECKS", (lambda _: [ok("it", "no user with s3cret:pass")],))
    settings = load_settings(data_dir=tmp_path, redis_url="redis://:s3cret%3Apass@127.0.0.1:1")
    assert "s3cret" not in json.dumps([each.detail for each in examination.examine(settings)])
