#!/usr/bin/env python3
"""Jobs that a real Slurm starts, with srun and with sbatch, on two nodes: cluster.py.

usage: slurm_test.py MNIST RANK DATA    examples/c/mnist, tests/dist/run/rank.c, the folder of the digits
"""
import pathlib
import re
import sys
import time
import unittest

import cluster

MNIST, RANK, DATA = sys.argv[1:4]
del sys.argv[1:4]
JOB = pathlib.Path(__file__).resolve().parents[3] / "examples/slurm/job.sh"
TRAIN = (MNIST, "--data", DATA, "--epochs", "1", "--compare-local")
SECRET = {"DDP_SECRET": "of sixteen bytes and more"}


class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cluster.Cluster().__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)

    def output(self, job):
        path = self.cluster.folder / f"slurm-{job}.out"
        return path.read_text() if path.exists() else ""

    def ended(self, job, state):
        self.cluster.until(lambda: self.cluster.state_of(job) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"),
                           f"job {job} does not end")
        self.assertEqual(self.cluster.state_of(job), state, self.output(job))
        self.assertFalse((self.cluster.folder / f"job-{job}.secret").exists(), "the secret of the job stays")

    def test_srun_trains_on_two_nodes(self):
        job = self.cluster.run("srun", "-N2", "--ntasks-per-node=2", *TRAIN, **SECRET)
        self.assertEqual(job.returncode, 0, job.stdout)
        self.assertRegex(job.stdout, r"bound .*: met")

    def test_a_batch_job_trains_and_leaves_no_secret(self):
        job = self.cluster.submit(JOB, *TRAIN)
        self.ended(job, "COMPLETED")
        self.assertRegex(self.output(job), r"bound .*: met")

    def test_two_jobs_on_the_same_nodes_do_not_meet(self):
        jobs = [self.cluster.submit(JOB, *TRAIN) for _ in range(2)]
        for job in jobs:
            self.ended(job, "COMPLETED")
            self.assertRegex(self.output(job), r"bound .*: met")

    def test_without_a_secret_the_error_says_how_to_make_one(self):
        job = self.cluster.run("srun", "-N2", "--ntasks-per-node=1", *TRAIN)
        self.assertNotEqual(job.returncode, 0)
        self.assertIn("DDP_ERROR_PERMISSION_DENIED", job.stdout)
        self.assertIn("DDP_SECRET_FILE", job.stdout)

    def test_a_batch_script_without_srun_is_refused_at_once(self):
        script = self.cluster.folder / "no-srun.sh"
        script.write_text(f"#!/bin/bash\n{RANK} 0 0\n")
        for arguments, says in ((("-n4",), "SLURM_NTASKS is 4"), (("-N2",), "has 2 nodes")):
            job = self.cluster.submit(*arguments, script)
            self.ended(job, "FAILED")
            self.assertIn(says, self.output(job))
            self.assertIn("srun did not start this process", self.output(job))

    def test_variables_of_pytorch_beside_a_task_of_slurm_are_refused(self):
        job = self.cluster.run("srun", "-n1", RANK, "0", "0", RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
        self.assertNotEqual(job.returncode, 0)
        self.assertIn("SLURM_STEP_NUM_TASKS is 1 where WORLD_SIZE is 2", job.stdout)

    def test_ranks_that_are_left_name_the_one_that_died(self):
        job = self.cluster.run("srun", "-N2", "--ntasks-per-node=2", "--kill-on-bad-exit=0", "--wait=20", RANK, "2", "9", **SECRET)
        self.assertNotEqual(job.returncode, 0)
        # The ranks of the victim's node and those of the other one.
        self.assertEqual(len(re.findall(r"rank 2 \(pid \d+ on n2\) died", job.stdout)), 3, job.stdout)

    def test_with_kill_on_bad_exit_the_job_ends_at_once(self):
        job = self.cluster.run("srun", "-N2", "--ntasks-per-node=2", "--kill-on-bad-exit=1", RANK, "1", "9", timeout=30, **SECRET)
        self.assertNotEqual(job.returncode, 0)
        self.assertIn("error: n1: task 1: Killed", job.stdout)

    def test_a_cancelled_job_ends_on_all_nodes(self):
        job = self.cluster.submit(JOB, RANK, "meet", str(self.cluster.folder / "never"))
        self.cluster.until(lambda: self.output(job).count("has met") == 4, "ranks do not meet")
        self.assertEqual(self.cluster.run("scancel", job).returncode, 0)
        self.ended(job, "CANCELLED")

    def test_a_requeued_job_meets_again(self):
        end = self.cluster.folder / "end"
        job = self.cluster.submit("--open-mode=append", JOB, RANK, "meet", str(end))
        self.cluster.until(lambda: self.output(job).count("has met") == 4, "ranks do not meet")
        self.assertEqual(self.cluster.run("scontrol", "requeue", job).returncode, 0)
        self.cluster.until(lambda: self.cluster.state_of(job) == "PENDING", "the job is not requeued")
        # Not two minutes later, but not within the second in which it was ended: slurmd would refuse it.
        time.sleep(2)
        self.assertEqual(self.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now").returncode, 0)
        self.cluster.until(lambda: self.output(job).count("has met") == 8, "ranks do not meet again")
        end.touch()
        self.ended(job, "COMPLETED")


if __name__ == "__main__":
    if reason := cluster.why_impossible():
        print(f"skipped: {reason}")
        sys.exit(0)
    unittest.main(verbosity=2)
