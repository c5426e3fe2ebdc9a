"""spark_minimal.py: a distributed trainer in the tasks of Spark. It fits y = w0 + w1 x to rows that Spark reads.

    python3 spark_minimal.py          or spark-submit spark_minimal.py
"""
import ddp
import ddp.spark
import numpy as np
from pyspark.sql import SparkSession


def train(rows, steps):
    group = ddp.Group()  # as under ddprun
    x, y = np.array([(row["x"], row["y"]) for row in rows], np.float32).T
    w, grad = np.zeros(2, np.float32), np.zeros(2, np.float32)
    with ddp.Context(group) as ctx:
        param = ctx.register("w", w, grad)
        ctx.commit()
        for _ in range(steps):
            wrong = w[0] + w[1] * x - y
            grad[:] = wrong.mean(), (wrong * x).mean()
            ctx.grad_ready(param)
            ctx.finalize()
            w -= 0.5 * grad
    return w


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()  # without spark-submit: on all cores of this machine
    samples = spark.createDataFrame([(i / 20, 3 - 2 * i / 20) for i in range(20)], "x double, y double")
    for rank, w in enumerate(ddp.spark.run(train, 2, (500,), data=samples)):
        print(f"rank {rank}: y = {w[0]:.3f} {w[1]:+.3f} x")
