"""Error responses: the code is the one it has everywhere, the status says whose turn it is."""

import json
from http import HTTPStatus

from runnel.core.errors import BadBatch, BrokerClosed, DiskFull, InvalidName, LimitExceeded, RunnelError, UnknownTopic
from runnel.server.http import errors
from tests.project.test_errors import all_errors


def test_every_code_of_the_table_is_an_error_and_every_status_one_of_http() -> None:
    codes = {error.code for error in all_errors()}
    assert sorted(set(errors.STATUS) - codes) == []
    assert all(HTTPStatus(status) for status in errors.STATUS.values())


def test_every_error_has_a_status_that_fits_its_branch() -> None:
    assert errors.status_of(InvalidName("a b", "it holds ' '")) == 400
    assert errors.status_of(UnknownTopic("t")) == 404
    assert errors.status_of(BrokerClosed("publishing")) == 503
    assert errors.status_of(LimitExceeded("max_streams", 2, 1)) == 503
    assert errors.status_of(BadBatch("nonsense")) == 500
    assert errors.status_of(RunnelError("odd")) == 500


def test_a_document_carries_the_code_and_more_facts() -> None:
    answer = errors.error_response(UnknownTopic("t"), stored=3)
    assert (answer.status_code, answer.media_type) == (404, "application/problem+json")
    told = json.loads(bytes(answer.body))
    assert told["type"] == "urn:runnel:error:unknown_topic"
    assert (told["code"], told["status"], told["title"], told["stored"]) == ("unknown_topic", 404, "unknown topic", 3)
    assert "'t'" in told["detail"]


def test_what_may_be_tried_again_says_when() -> None:
    assert errors.error_response(LimitExceeded("max_streams", 2, 1)).headers["retry-after"] == "1"
    assert "retry-after" not in errors.error_response(UnknownTopic("t")).headers


def test_a_full_disk_has_a_status_of_its_own() -> None:
    assert errors.STATUS[DiskFull.code] == 507
