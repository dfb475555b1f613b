"""The servers that other tests rely on do what those tests need: real clients, faults in between, death and return."""

import asyncio
from pathlib import Path
from uuid import UUID

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from tests.support.clickhouse_server import ClickHouseServer, running_clickhouse
from tests.support.fault_proxy import fault_proxy
from tests.support.kafka_server import KafkaServer

ROWS = [(UUID(int=number), f"it's {number}\t\\" + "x" * 1000, None if number % 2 else number) for number in range(5000)]
"""Enough rows that the client sends them in several blocks."""


def test_kafka_keeps_what_it_acknowledged_through_kill_and_stop(own_kafka: KafkaServer) -> None:
    own_kafka.create_topic("events")
    with KafkaProducer(bootstrap_servers=own_kafka.bootstrap, delivery_timeout_ms=60_000) as producer:
        for number, end in enumerate([own_kafka.kill, own_kafka.stop]):
            producer.send("events", str(number).encode()).get(60)
            end()
            own_kafka.start()
        producer.send("events", b"2").get(60)
    with KafkaConsumer(
        "events", bootstrap_servers=own_kafka.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=10_000
    ) as consumer:
        assert {next(consumer).value for _ in range(3)} == {b"0", b"1", b"2"}


async def test_kafka_sends_clients_of_the_proxy_back_to_it(kafka_server: KafkaServer) -> None:
    def brokers() -> list[dict[str, object]]:
        with KafkaAdminClient(bootstrap_servers=kafka_server.proxied_bootstrap) as admin:
            return admin.describe_cluster()["brokers"]

    async with fault_proxy(kafka_server.proxied_port, kafka_server.proxy_port):
        assert [each["port"] for each in await asyncio.to_thread(brokers)] == [kafka_server.proxy_port]


@pytest.mark.parametrize("compress", [False, "lz4", "zstd", "gzip"])
def test_clickhouse_serves_the_unchanged_client(clickhouse_server: ClickHouseServer, compress: bool | str) -> None:
    client = clickhouse_connect.get_client(dsn=clickhouse_server.new_database(), compress=compress)
    client.command("CREATE TABLE t (id UUID, text String, number Nullable(UInt64)) ENGINE = MergeTree ORDER BY id")
    client.insert("t", ROWS, column_names=["id", "text", "number"])
    assert client.query("SELECT * FROM t ORDER BY text").result_rows == sorted(ROWS, key=lambda row: row[1])
    bound = {"text": ROWS[6][1], "ids": [row[0] for row in ROWS[:9]]}
    found = client.query("SELECT number FROM t WHERE text = {text:String} AND id IN {ids:Array(UUID)}", bound)
    assert found.result_rows == [(6,)]
    assert client.query("SELECT getSetting('max_threads')", settings={"max_threads": 7}).result_rows == [(7,)]
    assert client.query("SELECT getSetting('max_threads')").result_rows != [(7,)]
    long_text = "x" * 100_000
    assert client.query("SELECT length({text:String})", {"text": long_text}).result_rows == [(100_000,)]
    with pytest.raises(DatabaseError) as error:
        client.command("SELECT * FROM not_there")
    assert error.value.code == 60
    client.close()


async def test_clickhouse_serves_the_unchanged_async_client(clickhouse_server: ClickHouseServer) -> None:
    client = await clickhouse_connect.get_async_client(dsn=clickhouse_server.new_database())
    await client.command(
        "CREATE TABLE t (id UUID, text String, number Nullable(UInt64)) ENGINE = MergeTree ORDER BY id"
    )
    await client.insert("t", ROWS, column_names=["id", "text", "number"])
    answer = await client.query("SELECT id, text, number FROM t WHERE number = {number:UInt64}", {"number": 8})
    assert answer.result_rows == [ROWS[8]]
    await client.close()


def test_clickhouse_keeps_what_it_acknowledged_through_kill_and_stop(tmp_path: Path) -> None:
    with running_clickhouse() as server:
        dsn = server.url()
        for number, end in enumerate([server.kill, server.stop]):
            client = clickhouse_connect.get_client(dsn=dsn)
            client.command("CREATE TABLE IF NOT EXISTS t (number UInt64) ENGINE = MergeTree ORDER BY number")
            client.insert("t", [(number,)], column_names=["number"])
            client.close()
            end()
            server.start()
        client = clickhouse_connect.get_client(dsn=dsn)
        assert client.query("SELECT number FROM t ORDER BY number").result_rows == [(0,), (1,)]
        client.close()
