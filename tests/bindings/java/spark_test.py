"""org.libddp.spark.Barrier, compiled against the jars of a Spark from PyPI, in a Spark of this machine: results, failures, two jobs at once,
and the example.

    spark_test.py JAVAC JAVA libddp.jar SCRATCH
"""
import importlib.util
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import support  # noqa: E402  (tests/bindings/python)

support.need("pyspark")
javac, java, jar = sys.argv[1:4]
scratch, source = pathlib.Path(sys.argv[4]), pathlib.Path(__file__).resolve().parents[3]
spark = pathlib.Path(importlib.util.find_spec("pyspark").origin).with_name("jars")
path = os.pathsep.join([jar, str(spark / "*"), str(scratch)])
# Spark opens parts of the JDK.
OPTIONS = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent",
    "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar")]


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250, check=False,
                          env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})
    assert done.returncode == 0, done.stdout
    return done.stdout


scratch.mkdir(parents=True, exist_ok=True)
run(javac, "-Xlint:all,-path,-classfile,-processing", "-Werror", "-proc:none", "-d", str(scratch), "-cp", path,
    *(str(source / name) for name in ("bindings/java/spark/org/libddp/spark/Barrier.java", "examples/java/spark/SparkMinimal.java",
                                      "tests/bindings/java/spark/Barriers.java")))
settings = ["-Dspark.master=local[5]", "-Dspark.ui.enabled=false", "-Dspark.driver.host=127.0.0.1", "-Dspark.driver.bindAddress=127.0.0.1"]
said = run(java, "-Xmx700m", *OPTIONS, *settings, "-cp", path, "Barriers")
assert said.count(": met") == 7, said
said = run(java, "-Xmx700m", *OPTIONS, *settings, "-cp", path, "SparkMinimal")
for rank in range(2):
    assert f"rank {rank}: y = 3.000 -2.000 x" in said, said
