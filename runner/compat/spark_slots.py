"""How many tasks a Spark session can run at the same time.

Private: pyspark's way to the session's Java object. Nothing public tells slots: `defaultParallelism` is at least 2
where one core is free, and a user may have set it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKED = {"pyspark": ">=4.0,<5"}


def slots(spark: SparkSession) -> int:
    """Tasks that can run at once on the executors that are there by now."""
    scala: Any = spark.sparkContext._jsc.sc()
    profile = scala.resourceProfileManager().resourceProfileFromId(0)
    return int(scala.maxNumConcurrentTasks(profile))
