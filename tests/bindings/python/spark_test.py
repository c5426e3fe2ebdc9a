"""ddp.spark.run with a Spark of this machine: results, failures, killed ranks and tasks, restarts, two jobs at once, data of Spark.

    spark_test.py EXAMPLE
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import support

support.need("numpy", "pyspark")
if not shutil.which("java"):
    print("skipped: there is no Java for Spark")
    raise SystemExit

os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")

import numpy as np  # noqa: E402
import pyspark  # noqa: E402
from py4j.protocol import Py4JError  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

import ddp  # noqa: E402
import ddp.spark  # noqa: E402

import engine_jobs  # noqa: E402
from engine_jobs import SOON_S, EngineCase, facts, failing, restarted, sums, trained  # noqa: E402

pyspark.cloudpickle.register_pickle_by_value(engine_jobs)  # workers need not find it


def session(master, settings):
    builder = SparkSession.builder.master(master)
    for name, value in {"ui.enabled": "false", "ui.showConsoleProgress": "false", "driver.host": "127.0.0.1",
                        "driver.bindAddress": "127.0.0.1", "log.level": "OFF"}.items():
        builder = builder.config(f"spark.{name}", value)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def gpus():
    ddp.Group().barrier()
    return os.environ["LOCAL_RANK"], os.environ["CUDA_VISIBLE_DEVICES"]


def kill_the_executor(folder):
    """The Java process above the rank, its task and Spark's daemon."""
    group = ddp.Group()
    group.barrier()
    if group.rank == 1:
        pid = os.getpid()
        while pathlib.Path(f"/proc/{pid}/comm").read_text().strip() != "java":
            pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        pathlib.Path(folder, "pid").write_text(str(os.getpid()))
        os.kill(pid, signal.SIGKILL)
    while True:
        group.allreduce(np.ones(10, np.float32))


class Run(EngineCase):
    @classmethod
    def setUpClass(cls):
        cls.events = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.events)
        cls.spark = session("local[5]", {"spark.sql.shuffle.partitions": "2", "spark.eventLog.enabled": "true",
                                         "spark.eventLog.compress": "false", "spark.eventLog.dir": f"file://{cls.events}"})

    @classmethod
    def tearDownClass(cls):
        cls.spark.stop()

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.begun = time.monotonic()

    def failed(self, *args):
        with self.assertRaises(ddp.RankFailedError) as caught:
            ddp.spark.run(failing, 3, (*args, self.folder))
        self.assertIsInstance(caught.exception.__cause__, Py4JError)
        self.assertLess(time.monotonic() - self.begun, SOON_S)
        pids = [pathlib.Path(self.folder, f"{rank}.pid").read_text() for rank in range(3)]
        while left := [pid for pid in pids if self.runs(pid)]:
            self.assertLess(time.monotonic() - self.begun, SOON_S, f"{left} still run")
            time.sleep(0.1)
        return caught.exception

    def runs(self, pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def test_results(self):
        self.check_sums(ddp.spark.run(sums, 3, (1000,)), 3, 1000)
        self.check_sums(ddp.spark.run(sums, 2, (1000,)), 2, 1000)  # in tasks whose processes Spark uses again

    def test_environment(self):
        """The variables that ddprun sets; and the secret, which is in no environment, command line or event of Spark."""
        secret = self.check_environment(ddp.spark.run(facts, 2))
        events = [path.read_bytes() for path in pathlib.Path(self.events).rglob("*") if path.is_file()]
        self.assertTrue(any(b"SparkListenerJobStart" in each for each in events))
        self.assertFalse(any(secret in each for each in events))

    def test_an_exception(self):
        error = self.failed("raise")
        self.assertEqual(error.rank, 1)
        self.assertRegex(str(error), r"^rank 1 of 3 \(pid \d+ on \S+\) failed: ValueError: the sample 17 is bad")
        self.assertRegex(str(error), r"; rank 0 of 3 \(pid \d+ on \S+\) failed: RankFailedError: .*rank 1")

    def test_an_exit(self):
        self.assertRegex(str(self.failed("exit")), r"^rank 1 of 3 \(.*\) failed: RuntimeError: it exited with status 3")
        self.assertEqual(ddp.spark.run(lambda: __import__("sys").exit(0), 1), [None])

    def test_a_killed_rank(self):
        error = self.failed("kill")
        self.assertEqual(error.rank, 1)
        self.assertRegex(str(error), r"^rank 1 of 3 \(pid \d+ on \S+\) was killed by signal 9 \(SIGKILL\)")
        self.assertRegex(str(error), r"; rank 0 of 3 \(pid \d+ on \S+\) failed: RankFailedError: .*rank 1")

    def test_a_killed_task(self):
        """The process of Spark that has started the rank: libddp's sentence is all that there is."""
        error = self.failed("kill the task")
        self.assertEqual(error.rank, 1)
        self.assertRegex(str(error), r"^rank 0 of 3 \(pid \d+ on \S+\) failed: RankFailedError: .*rank 1")

    def test_restarts(self):
        self.assertEqual(ddp.spark.run(restarted, 2, max_restarts=1), [(1, 0), (1, 1)])
        with self.assertRaisesRegex(ddp.RankFailedError, "the first start"):
            ddp.spark.run(restarted, 2)

    def test_two_jobs_at_once(self):
        self.check_two_jobs_at_once(ddp.spark.run)

    def test_data_of_spark(self):
        frame = self.spark.createDataFrame([(i / 20, 3 - 2 * i / 20) for i in range(20)], "x double, y double").filter("x < 0.99")
        for data in (frame, frame.rdd):
            results = ddp.spark.run(trained, 2, data=data)
            np.testing.assert_allclose(sorted(results[0][0] + results[1][0]), np.arange(20) / 20, atol=1e-6)
            for samples, weights in results:
                self.assertGreater(len(samples), 0)
                np.testing.assert_allclose(weights, (3, -2), atol=1e-2)
            np.testing.assert_array_equal(results[0][1], results[1][1])

    def test_arguments(self):
        with self.assertRaisesRegex(ValueError, "num_proc: 0"):
            ddp.spark.run(sums, 0, (1,))
        with self.assertRaisesRegex(ValueError, "max_restarts: -1"):
            ddp.spark.run(sums, 1, (1,), max_restarts=-1)


class Workers(unittest.TestCase):
    """Two executors, processes of their own, with GPUs that are only said to be there."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        script = pathlib.Path(self.folder, "gpus.sh")
        script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["0", "1"]}'\n""")
        script.chmod(0o755)
        self.spark = session("local-cluster[2,2,600]", {
            "spark.executor.memory": "600m", "spark.worker.resource.gpu.amount": "2", "spark.worker.resource.gpu.discoveryScript": str(script),
            "spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1", "spark.executor.cores": "2",
            "spark.eventLog.enabled": "false"})
        self.addCleanup(shutil.rmtree, pathlib.Path(pyspark.__file__).with_name("work"), ignore_errors=True)  # of the executors
        self.addCleanup(self.spark.stop)

    def test_gpus_and_a_killed_executor(self):
        results = ddp.spark.run(gpus, 2)
        self.assertEqual([local for local, _ in results], ["0", "1"])
        self.assertEqual(results[0][1], results[1][1])
        self.assertEqual(len(results[0][1].split(",")), 2)
        begun = time.monotonic()
        with self.assertRaisesRegex(ddp.RankFailedError, r"^rank 0 of 2 .* failed: RankFailedError: .*rank 1") as caught:
            ddp.spark.run(kill_the_executor, 2, (self.folder,))
        self.assertEqual(caught.exception.rank, 1)
        self.assertLess(time.monotonic() - begun, SOON_S)


class NoSpark(unittest.TestCase):
    def test_example(self):
        done = subprocess.run([sys.executable, "-B", sys.argv[1]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              timeout=3 * SOON_S)
        self.assertEqual(done.returncode, 0, done.stdout)
        for rank in range(2):
            self.assertIn(f"rank {rank}: y = 3.000 -2.000 x", done.stdout)

    def test_without_a_context(self):
        with support.raises(self, ddp.InvalidStateError, "no SparkContext"):
            ddp.spark.run(sums, 2, (1,))


if __name__ == "__main__":
    support.main()
