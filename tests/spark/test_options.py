"""Options of a query: matched as Spark writes them, refused with the nearest right one, and never shown when secret."""

from __future__ import annotations

import pickle

import pytest

from runnel.core.errors import InvalidOption, InvalidPattern
from runnel.spark.options import BrokerLocation, SinkOptions, SourceOptions

FOLDER = {"path": "data", "topic": "orders"}


def test_names_are_matched_whatever_their_case() -> None:
    said = SourceOptions.parse(
        {
            "PATH": "data",
            "Topic": "orders, jobs.*,orders",
            "startingoffsets": "earliest",
            "MAXRECORDSPERTRIGGER": "10",
            "maxBytesPerTrigger": "64m",
            "minPartitions": "4",
            "failondataloss": "False",
        }
    )
    assert said.location == BrokerLocation(path="data")
    assert said.topics == ("orders", "jobs.*")
    assert (said.starting, said.max_records, said.max_bytes, said.min_partitions) == ("earliest", 10, 64 << 20, 4)
    assert not said.fail_on_data_loss


def test_what_is_not_said_has_a_default() -> None:
    said = SourceOptions.parse(FOLDER)
    assert said.fail_on_data_loss
    assert (said.starting, said.ending, said.max_records, said.max_bytes, said.min_partitions) == (None,) * 4 + (1,)
    assert (said.typed, said.mode, said.cursor, said.hold) == (False, "PERMISSIVE", None, False)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("topc", "did you mean 'topic'"),
        ("startingOffset", "did you mean 'startingOffsets'"),
        ("maxRowsPerTrigger", "did you mean 'maxRecordsPerTrigger'"),
        ("whatever", "there are ca, cert, columnNameOfCorruptRecord, cursor"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_one(written: str, meant: str) -> None:
    with pytest.raises(InvalidOption, match=meant):
        SourceOptions.parse({**FOLDER, written: "1"})


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("subscribe", "topic"),
        ("subscribePattern", "topic"),
        ("assign", "topic"),
        ("kafka.bootstrap.servers", "url"),
        ("kafka.security.protocol", "url"),
        ("kafka.group.id", "cursor"),
        ("startingOffsetsByTimestamp", "startingOffsets"),
        ("startingTimestamp", "startingOffsets"),
        ("endingOffsetsByTimestamp", "endingOffsets"),
        ("maxOffsetsPerTrigger", "maxRecordsPerTrigger"),
        ("minOffsetsPerTrigger", "a longer trigger"),
        ("includeHeaders", "the column headers"),
        ("fetchOffset.numRetries", "wait"),
    ],
)
def test_a_name_of_kafka_s_is_refused_with_ours(written: str, ours: str) -> None:
    with pytest.raises(InvalidOption, match=f"it is one of Kafka's; here it is {ours}"):
        SourceOptions.parse({**FOLDER, written: "x"})


def test_what_is_spark_s_own_is_left_alone() -> None:
    assert SinkOptions.parse({"path": "data", "checkpointLocation": "/x", "queryName": "q"}).topic is None


@pytest.mark.parametrize(
    ("option", "text", "why"),
    [
        ("maxRecordsPerTrigger", "0", "1 or more"),
        ("maxRecordsPerTrigger", "many", "1 or more"),
        ("maxBytesPerTrigger", "64 apples", "number of bytes"),
        ("maxBytesPerTrigger", "0", "above 0"),
        ("failOnDataLoss", "maybe", "true or false"),
        ("topic", " , ", "name a topic"),
        ("valueFormat", "xml", "bytes or typed"),
        ("mode", "DROP", "PERMISSIVE or FAILFAST"),
        ("cursor", " ", "expected text"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(option: str, text: str, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        SourceOptions.parse({**FOLDER, option: text})


def test_a_topic_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidPattern):
        SourceOptions.parse({"path": "data", "topic": "a..b"})


@pytest.mark.parametrize("given", [{"topic": "a"}, {"topic": "a", "url": "runnel://h", "path": "data"}])
def test_a_place_is_a_server_or_a_folder(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="url='runnel://host:7788' for a server, path='data/' for a folder"):
        SourceOptions.parse(given)


def test_a_topic_must_be_named() -> None:
    with pytest.raises(InvalidOption, match="name the topic to read"):
        SourceOptions.parse({"path": "data"})


def test_what_is_about_a_server_means_nothing_for_a_folder() -> None:
    with pytest.raises(InvalidOption, match=r"tlsCa.*about a server"):
        SourceOptions.parse({**FOLDER, "tlsCa": "ca.pem"})


def test_tls_and_patience_go_to_the_client() -> None:
    said = SourceOptions.parse(
        {"url": "runnels://h", "topic": "a", "tlsCa": "ca.pem", "tlsVerify": "true", "timeout": "5", "wait": "2.5"}
    )
    assert said.location.client == {"ca": "ca.pem", "verify": True, "timeout": 5.0, "wait": 2.5}


def test_a_name_is_needed_to_hold_retention() -> None:
    with pytest.raises(InvalidOption, match="give the option cursor"):
        SourceOptions.parse({**FOLDER, "holdRetention": "true"})
    assert SourceOptions.parse({**FOLDER, "holdRetention": "true", "cursor": "me"}).hold


def test_secrets_are_not_shown() -> None:
    said = SourceOptions.parse({"url": "runnels://h:1?key=secret", "topic": "a", "tlsKey": "/keys/secret.pem"})
    assert "secret" not in repr(said)
    with pytest.raises(InvalidOption) as raised:
        SourceOptions.parse({**FOLDER, "token": "s3cret"})
    assert "s3cret" not in str(raised.value)


def test_a_mark_has_a_name_and_a_value() -> None:
    said = SinkOptions.parse({"path": "data", "topic": "t", "mark": "load", "markValue": "0"})
    assert (said.topic, said.mark, said.mark_value) == ("t", "load", 0)
    with pytest.raises(InvalidOption, match="give markValue, too"):
        SinkOptions.parse({"path": "data", "mark": "load"})
    with pytest.raises(InvalidOption, match="0 or more"):
        SinkOptions.parse({"path": "data", "mark": "load", "markValue": "-1"})


def test_options_travel() -> None:
    said = SourceOptions.parse(FOLDER)
    assert pickle.loads(pickle.dumps(said)) == said


def test_how_values_are_decoded_is_said_of_typed_ones_alone() -> None:
    said = SourceOptions.parse({**FOLDER, "valueFormat": "typed", "mode": "failfast", "decimalType": "18,4"})
    assert (said.typed, said.mode, said.corrupt, said.decimal) == (True, "FAILFAST", None, "18,4")
    for option, text in (("mode", "FAILFAST"), ("columnNameOfCorruptRecord", "bad"), ("decimalType", "18,4")):
        for given in ({}, {"valueFormat": "bytes"}):
            with pytest.raises(InvalidOption, match="give valueFormat='typed'"):
                SourceOptions.parse({**FOLDER, **given, option: text})
    with pytest.raises(InvalidOption, match="with FAILFAST such a record is an error"):
        SourceOptions.parse({**FOLDER, "valueFormat": "typed", "mode": "FAILFAST", "columnNameOfCorruptRecord": "bad"})


def test_a_lake_is_named_with_its_storage_options() -> None:
    said = {"path": "data", "topic": "t", "LAKE": "s3://bucket/lake", "lakestorage": '{"AWS_REGION": "eu-west-1"}'}
    location = SourceOptions.parse(said).location
    assert (location.lake, location.lake_storage) == ("s3://bucket/lake", {"AWS_REGION": "eu-west-1"})
    for wrong, words in (
        ({"lakestorage": "secret"}, "expected JSON"),
        ({"lake": " "}, "expected text"),
        ({"lakeStorage": '{"KEY": "secret"}'}, "give the option lake, too"),
    ):
        given = {"path": "data", "topic": "t", **({"lake": "l"} if "lakestorage" in wrong else {}), **wrong}
        with pytest.raises(InvalidOption, match=words) as error:
            SourceOptions.parse(given)
        assert "secret" not in str(error.value)
