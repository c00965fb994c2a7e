"""A program that knows Spark through Spark Connect only: it writes, reads back, and streams.

Run as a program: url, the address of a Connect server or nothing for one of its own, and `stream` if it is to stream.
"""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def main(url: str, where: str = "", *then: str) -> None:
    """Write numbers, read them, and, if `stream` is asked for, copy them by a stream; print what was seen."""
    import runnel.spark
    from tests.spark.conftest import QUICK

    spark = runnel.spark.session("connect", where) if where else runnel.spark.session("connect", **QUICK)
    say("SESSION", type(spark).__module__)
    frame = spark.range(0, 1000, 1, 2).selectExpr("cast(id as string) as value", "cast(id % 7 as string) as key")
    frame.write.format("runnel").mode("append").option("url", url).option("topic", "in").save()
    read = spark.read.format("runnel").option("url", url).option("topic", "in").load()
    say("READ", read.count(), read.where("offset >= 990").count())
    try:
        frame.write.format("runnel").mode("append").option("url", url).option("topik", "in").save()
    except Exception as error:
        say("REFUSED", "did you mean 'topic'" in str(error))
    if "stream" in then:
        stream = spark.readStream.format("runnel").option("url", url).option("topic", "in")
        copied = stream.option("startingOffsets", "earliest").load().select("key", "value")
        with TemporaryDirectory() as check:
            sink = copied.writeStream.format("runnel").option("url", url).option("topic", "out")
            query = sink.option("checkpointLocation", check).trigger(availableNow=True).start()
            query.awaitTermination()
            say("STREAMED")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
