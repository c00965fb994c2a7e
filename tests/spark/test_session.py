"""A session in one line: where it runs, what it is told, and what it needs from the environment."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import runnel.blocking
import runnel.spark
from runnel.core.errors import InvalidOption, NotSupported
from runnel.spark import session as called
from runnel.spark.session import ENVIRONMENT, activate, check_tasks, chosen, prepare, session
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))  # and put back afterwards


def test_the_name_of_the_module_is_the_function() -> None:
    assert called is session is runnel.spark.session


@pytest.mark.usefixtures("clean")
def test_it_runs_here_unless_a_server_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(None) == "local[*]"
    assert chosen("spark://a:7077") == "spark://a:7077"
    monkeypatch.setenv("SPARK_REMOTE", "sc://a")
    assert chosen(None) is None
    monkeypatch.delenv("SPARK_REMOTE")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert chosen(None) is None  # spark-submit
    assert chosen("local[2]") == "local[2]"


@pytest.mark.usefixtures("clean")
def test_the_environment_is_set_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "mine")
    prepare()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == "mine"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert os.path.exists(os.path.join(os.environ["JAVA_HOME"], "bin", "java"))


@pytest.mark.parametrize("app", ["", 7])
def test_a_session_has_a_name(app: Any) -> None:
    with pytest.raises(InvalidOption, match="app"):
        session(app)


def test_a_session_whose_tasks_lack_runnel_says_so(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nPYTHONPATH= exec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    for python in (str(bare), str(tmp_path / "nothing")):
        with pytest.raises(NotSupported, match=r"its tasks run under .*, which has no runnel; set PYSPARK_PYTHON="):
            check_tasks(python)
    check_tasks(sys.executable)


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(NotSupported, match=r"runnel-mq\[spark\]"):
        session("x")


def test_it_is_active_on_the_thread_that_asks_for_it(spark: SparkSession) -> None:
    jvm: Any = spark._jvm

    def active(*, asked: bool) -> bool:
        if asked:
            session("tests", "local[2,2]")
        return bool(jvm.org.apache.spark.sql.SparkSession.getActiveSession().isDefined())

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as another:
        assert not one.submit(active, asked=False).result(PATIENCE)
        assert another.submit(active, asked=True).result(PATIENCE)


def test_settings_arrive_and_everything_listens_on_loopback(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
    again = session("another", "local[2]", **{"spark.sql.caseSensitive": True})
    assert again.conf.get("spark.sql.caseSensitive") == "true"  # as Spark writes it
    again.conf.set("spark.sql.caseSensitive", "false")


def test_a_streaming_query_adds_no_name_to_the_environment_that_all_queries_share(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark adds them without a lock. Of two queries that start at once, one would have the map miscounted for good."""
    java: Any = spark._jsparkSession
    environment = java.sessionState().dataSourceManager().lookupDataSource("runnel").dataSourceCls().envVars()
    for name in ENVIRONMENT:
        environment.remove(name)
    activate(spark)
    before = sorted(environment.keySet())
    with runnel.blocking.open(tmp_path / "data") as broker:
        broker.publish("t", b"x")
    read = spark.readStream.format("runnel").option("path", str(tmp_path / "data")).option("topic", "t").load()
    query = read.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(environment.keySet()) == before
