"""Write the classes that Spark loads into an archive, from which Java starts in two thirds of the time (AppCDS).

`make test` makes it once, beside Spark, and the tests of Spark use it if it is there. Without it they take longer.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runnel.core.errors import NotSupported
from runnel.spark.java import find_java

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives for seconds."""


def archive() -> Path:
    """Where it is: in the environment that has Spark, for the Java that Spark runs on."""
    return Path(sys.prefix) / f"spark-java-{find_java().version}.jsa"


def options() -> str:
    """Options of a Java that runs Spark: start quickly, from the archive if there is one."""
    try:
        made = archive()
    except NotSupported:  # there is no Java
        return QUICK
    return f"{QUICK} -XX:SharedArchiveFile={made} -Xlog:disable" if made.exists() else QUICK


def work(spark: Any, folder: Path) -> None:
    """Some of everything, so that its classes are loaded."""
    rows = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as value", "cast(id % 7 as string) as key")
    rows.groupBy("key").count().orderBy("key").collect()
    rows.write.parquet(str(folder / "parquet"))
    rows.write.format("runnel").mode("append").option("topic", "t").save(str(folder / "journal"))
    source = spark.readStream.format("runnel").option("topic", "t").option("startingOffsets", "earliest")
    read = source.load(str(folder / "journal")).select("key", "value")
    for sink, path in (("parquet", "out"), ("runnel", "journal")):
        writer = read.writeStream.format(sink).option("topic", "copied").option("path", str(folder / path))
        writer = writer.option("checkpointLocation", str(folder / f"check-{sink}"))
        writer.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """Make it anew."""
    import runnel.spark

    made = archive()
    print(f"Writing {made.name} into {made.parent.name} (half a minute, once): with it Spark starts faster", flush=True)
    made.unlink(missing_ok=True)
    with TemporaryDirectory() as folder:
        new = Path(folder) / made.name
        settings = {
            "spark.driver.extraJavaOptions": f"{QUICK} -XX:ArchiveClassesAtExit={new} -Xlog:disable",
            "spark.ui.enabled": False,
            "spark.sql.shuffle.partitions": 1,
            "spark.driver.memory": "1g",
            "spark.log.level": "ERROR",
        }
        spark = runnel.spark.session("archive", "local[2]", **settings)
        java: Any = spark.sparkContext._gateway
        work(spark, Path(folder))
        spark.stop()
        java.shutdown()
        java.proc.stdin.close()
        java.proc.wait()  # it writes on its way out
        if new.exists():
            shutil.move(new, made)
        else:
            print("  this Java wrote none; tests of Spark take longer without")


if __name__ == "__main__":
    main()
