"""ddp.ray.launch with a Ray of this machine: results, failures, killed workers, restarts, two jobs at once, elastic jobs, Ray's data.

    ray_test.py EXAMPLE
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import support

support.need("numpy", "ray", "pandas", "pyarrow")

# A busy machine takes long to start Ray. Ray reports nothing to anybody.
os.environ.update(RAY_raylet_start_wait_time_s="200", RAY_USAGE_STATS_ENABLED="0", RAY_enable_worker_prestart="0")

import numpy as np  # noqa: E402
import ray  # noqa: E402

import ddp  # noqa: E402
import ddp.ray  # noqa: E402

import engine_jobs  # noqa: E402
from engine_jobs import SOON_S, EngineCase, facts, failing, restarted, sums, trained  # noqa: E402

ray.cloudpickle.register_pickle_by_value(engine_jobs)  # workers need not find it
STEPS = 40


def gradient(step, samples):
    i = np.arange(100, dtype=np.float32)
    return sum(((step * 31 + sample * 17 + i) % 23 - 11 for sample in samples), np.zeros(100, np.float32))


def reference(steps):
    weights = np.zeros(100, np.float32)
    for step in range(steps):
        weights -= np.float32(0.01) * gradient(step, range(12))
    return weights


def elastic(last_world, kill=(), fail=(), leave=()):
    """Trains until so many ranks are there in the end; these ranks end in the middle, each once."""
    number = ddp.environment().rank
    weights, grad = np.zeros(100, np.float32), np.zeros(100, np.float32)
    with ddp.Elastic(timeout=60) as job, ddp.Context(job.group, reduction="sum") as ctx:
        ctx.register("w", weights, grad)
        ctx.commit()
        job.add_context(ctx)
        while True:
            now = job.begin()
            if now.leaving:
                job.leave()
                return "left"
            if now.step >= STEPS and now.world_size == last_world:
                return now.step, weights, ddp.environment().restart
            time.sleep(0.02)
            first = now.step == STEPS // 2 and ddp.environment().restart == 0
            if first and number in kill:
                os.kill(os.getpid(), signal.SIGKILL)
            if first and number in fail:
                raise ValueError("in the middle")
            if now.step == STEPS // 2 and number in leave:
                job.announce_leave()
            try:
                grad[:] = gradient(now.step, ddp.shard_range(12, now.rank, now.world_size))
                ctx.grad_ready(0)
                ctx.finalize()
            except ddp.Error:
                if not job.group.broken:
                    raise
                continue
            weights -= np.float32(0.01) * grad
            job.commit()


def trained_with(shards):
    return trained(shards[ddp.environment().rank].iter_rows())


class Launch(EngineCase):
    @classmethod
    def setUpClass(cls):
        ray.init(num_cpus=6, num_gpus=4, include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=100 << 20,
                 log_to_driver=False, logging_level="error")

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.begun = time.monotonic()

    def failed(self, count, program, *args, **options):
        with self.assertRaises(ddp.ray.RankFailedError) as caught:
            ddp.ray.launch(program, count, args, **options)
        self.assertIsInstance(caught.exception, ddp.RankFailedError)
        self.assertIsInstance(caught.exception, ray.exceptions.RayError)
        self.assertLess(time.monotonic() - self.begun, SOON_S)
        self.assertEqual(self.free(), 6, "nothing stays reserved")
        return caught.exception

    def free(self):
        """The CPUs that are free, when Ray has counted them."""
        for _ in range(100):
            if ray.available_resources().get("CPU") == 6:
                break
            time.sleep(0.1)
        return ray.available_resources().get("CPU")

    def test_results(self):
        for options in ({}, {"store": "rank"}, {"placement_strategy": "STRICT_PACK", "resources_per_worker": {"CPU": 2}}):
            with self.subTest(options):
                results = ddp.ray.launch(sums, 3, (1000,), **options)
                self.check_sums(results, 3, 1000)

    def test_environment(self):
        """The variables that ddprun sets; and the secret, which is in no environment, and in no file of Ray's."""
        os.environ["DDP_SECRET"] = "a secret that somebody has exported"
        self.addCleanup(os.environ.pop, "DDP_SECRET")
        results = ddp.ray.launch(facts, 2, resources_per_worker={"CPU": 1, "GPU": 2})
        gpus = {visible for *_, visible in results}
        self.assertEqual(len(gpus), 1)
        self.assertEqual(sorted(gpus.pop().split(",")), list("0123"), "each rank sees the GPUs of both")
        secret = self.check_environment(results)
        files = [path for path in pathlib.Path(ray._private.worker._global_node.get_session_dir_path()).rglob("*") if path.is_file()]
        self.assertGreater(len(files), 5)
        self.assertEqual([path for path in files if secret in path.read_bytes()], [])

    def test_an_exception(self):
        error = self.failed(3, failing, "raise", self.folder)
        self.assertEqual(error.rank, 1)
        self.assertRegex(str(error), r"^rank 1 of 3 \(pid \d+ on \S+\) failed: ValueError: the sample 17 is bad")
        self.assertRegex(str(error), r"; rank 0 of 3 \(pid \d+ on \S+\) failed: RankFailedError: .*rank 1")
        self.assertIsInstance(error.__cause__, ray.exceptions.RayTaskError)
        self.assertIsInstance(error.__cause__.cause, ValueError)

    def test_an_exit(self):
        error = self.failed(3, failing, "exit", self.folder)
        self.assertRegex(str(error), r"^rank 1 of 3 \(.*\) failed: RuntimeError: it exited with status 3")
        self.assertEqual(ddp.ray.launch(lambda: __import__("sys").exit(0), 1), [None])

    def test_a_killed_worker(self):
        error = self.failed(3, failing, "kill", self.folder)
        self.assertEqual(error.rank, 1)
        self.assertRegex(str(error), r"^rank 1 of 3 \(pid \d+ on \S+\) died: ")
        self.assertRegex(str(error), r"; rank 0 of 3 \(pid \d+ on \S+\) failed: RankFailedError: .*rank 1")
        self.assertIsInstance(error.__cause__, ray.exceptions.RayActorError)

    def test_no_place(self):
        error = self.failed(9, sums, 10, timeout=2)
        self.assertIn("9 workers with {'CPU': 1} each (PACK) cannot be placed; the cluster has {", str(error))

    def test_arguments(self):
        for wrong, options in (("num_workers: 0", {"num_workers": 0}), ("store: 'disk'", {"store": "disk"}),
                               ("max_restarts: -1", {"max_restarts": -1}),
                               ("min_workers: 3", {"min_workers": 3}), ("outlive every rank", {"min_workers": 1, "store": "rank"})):
            with self.assertRaisesRegex(ValueError, wrong):
                ddp.ray.launch(sums, **{"num_workers": 2, "args": (1,), **options})

    def test_restarts(self):
        self.assertEqual(ddp.ray.launch(restarted, 2, max_restarts=1), [(1, 0), (1, 1)])
        self.assertIn("the first start", str(self.failed(2, restarted)))

    def test_two_jobs_at_once(self):
        self.check_two_jobs_at_once(ddp.ray.launch)

    def check_trained(self, results, restarts):
        """The weights are those of one process, with the same bits."""
        self.assertEqual(len({steps for steps, _, _ in results}), 1)
        self.assertEqual([restart for _, _, restart in results], restarts)
        for steps, weights, _ in results:
            np.testing.assert_array_equal(weights, reference(steps))

    def test_elastic_with_restarts(self):
        """A killed worker and one that raises come again."""
        for killed, failed in (((1,), ()), ((), (1,))):
            with self.subTest(killed=killed, failed=failed):
                self.check_trained(ddp.ray.launch(elastic, 3, (3, killed, failed), min_workers=2, max_restarts=1), [0, 1, 0])

    def test_elastic_without_restarts(self):
        results = ddp.ray.launch(elastic, 3, (2, (1,)), min_workers=2)
        self.assertIsNone(results.pop(1))
        self.check_trained(results, [0, 0])

    def test_elastic_that_leaves(self):
        results = ddp.ray.launch(elastic, 3, (2, (), (), (0,)), min_workers=1)
        self.assertEqual(results.pop(0), "left")
        self.check_trained(results, [0, 0])

    def test_elastic_with_too_few(self):
        error = self.failed(2, elastic, 2, (), (1,), min_workers=2)
        self.assertEqual(error.rank, 1)
        self.assertIn("ValueError: in the middle", str(error))

    def test_example(self):
        done = subprocess.run([sys.executable, "-B", sys.argv[1]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              timeout=3 * SOON_S, env={**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address})
        self.assertEqual(done.returncode, 0, done.stdout)
        for rank in range(2):
            self.assertIn(f"rank {rank}: y = 3.000 -2.000 x", done.stdout)

    def test_data_of_ray(self):
        ray.data.DataContext.get_current().enable_progress_bars = False
        data = ray.data.from_items([{"x": i / 20, "y": 3 - 2 * i / 20} for i in range(20)])
        results = ddp.ray.launch(trained_with, 2, (data.streaming_split(2, equal=True),))
        self.assertEqual([len(rows) for rows, _ in results], [10, 10])
        np.testing.assert_allclose(sorted(results[0][0] + results[1][0]), np.arange(20) / 20, atol=1e-6)
        for _, weights in results:
            np.testing.assert_allclose(weights, (3, -2), atol=1e-2)
        np.testing.assert_array_equal(results[0][1], results[1][1])


if __name__ == "__main__":
    support.main()
