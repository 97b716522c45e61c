"""`cluster=spark`: ranks are started by pyspark's own distributors, on the driver or on executors without a shared
disk.
"""

from runner.clusters.spark.cluster import Spark

__all__ = ["Spark"]
