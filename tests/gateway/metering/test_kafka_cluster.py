"""A Kafka URL says which servers, and how to prove who we are."""

import pytest

from gateway.metering.kafka_cluster import KafkaCluster


def test_servers_and_their_default_port() -> None:
    cluster = KafkaCluster.from_url("kafka://one,two:1234,[::1]:5")
    assert cluster.servers == ("one:9092", "two:1234", "[::1]:5")
    assert cluster.options == {"security_protocol": "PLAINTEXT"}


def test_credentials() -> None:
    cluster = KafkaCluster.from_url("kafkas://us%40er:p%3Aa%2Fss@one?sasl=scram-sha-512")
    assert cluster.options == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "us@er",
        "sasl_plain_password": "p:a/ss",
    }
    plain = KafkaCluster.from_url("kafka://user:word@one").options
    assert (plain["security_protocol"], plain["sasl_mechanism"]) == ("SASL_PLAINTEXT", "PLAIN")


@pytest.mark.parametrize(
    "url", ["", "one:9092", "http://one", "kafka://", "kafka://user:secret@", "kafka://one/topic", "kafka://one?acks=0"]
)
def test_other_forms_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(ValueError, match="must be a kafka://") as refusal:
        KafkaCluster.from_url(url)
    assert "secret" not in str(refusal.value)
