#!/usr/bin/env python3
"""The manifests of examples/kubernetes as pods on this machine: pods.py, with the names and environments that the controllers of
Kubernetes, JobSet and Kubeflow Trainer give them: manifests.py.

usage: kubernetes_test.py MNIST RANK DDPRUN LIBDDP DATA    examples/c/mnist, tests/dist/run/rank.c, ddprun, libddp.so, the folder of digits
"""
import pathlib
import signal
import sys
import time
import unittest

sys.dont_write_bytecode = True
try:
    import yaml  # noqa: F401
except ImportError:
    print("skipped: there is no yaml for Python: tools/setup")
    sys.exit(0)

import manifests
import pods

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from slack import SLACK  # noqa: E402  (tests/support)

MNIST, RANK, DDPRUN, LIBRARY, DATA = sys.argv[1:6]
del sys.argv[1:6]
FOLDER = pathlib.Path(__file__).resolve().parents[3] / "examples/kubernetes"
JOB, JOBSET, TRAINER = FOLDER / "indexed-job.yaml", FOLDER / "jobset.yaml", FOLDER / "trainer-runtime.yaml"
IMAGE = {"bin/mnist": MNIST, "bin/rank": RANK, "bin/ddprun": DDPRUN, f"lib/{pathlib.Path(LIBRARY).name}": LIBRARY, "share/mnist": DATA}
SECRETS = {"job-secret": {"secret": "of sixteen bytes and more"}}
TRAIN = ["mnist", "--data", "/usr/local/share/mnist", "--compare-local", "--epochs", "1"]
MET = r"bound .*: met"


def set_pods(job, count):
    """An Indexed Job with one rank a pod."""
    job["spec"].update(completions=count, parallelism=count)
    variable(job, "WORLD_SIZE")["value"] = str(count)


def container(job):
    return job["spec"]["template"]["spec"]["containers"][0]


def variable(job, name):
    return next(each for each in container(job)["env"] if each["name"] == name)


def program(words, count=None):
    """A change of the Indexed Job: another program, and perhaps another number of pods."""
    def change(objects):
        container(objects["Job"])["args"] = list(words)
        if count:
            set_pods(objects["Job"], count)
    return change


class Pods(unittest.TestCase):
    def cluster(self, **options):
        cluster = pods.Cluster(IMAGE, SECRETS, **options).__enter__()
        self.addCleanup(cluster.__exit__)
        return cluster

    def check_trained(self, cluster, controller):
        self.assertTrue(controller.run(), cluster.logs())
        said = "".join(process.said for process in controller.now.values())
        self.assertRegex(said, MET)
        return said


class IndexedJob(Pods):
    def test_two_and_four_pods_train(self):
        for count in (2, 4):
            with self.subTest(pods=count):
                cluster = self.cluster()
                controller = pods.Controller(cluster, manifests.of(JOB, program(TRAIN, count)))
                self.check_trained(cluster, controller)
                self.assertEqual(len(cluster.processes), count, "a pod failed")

    def test_a_name_that_is_known_late(self):
        """NXDOMAIN for three seconds, for rank 0 itself as for the others."""
        cluster = self.cluster()
        start = time.monotonic()
        controller = pods.Controller(cluster, manifests.of(JOB, program(TRAIN)), known_after=3)
        said = self.check_trained(cluster, controller)
        self.assertGreater(time.monotonic() - start, 3)
        self.assertEqual(len(cluster.processes), 4, "a pod failed")
        self.assertIn("the host name 'digits-0.digits' cannot be resolved", said)
        self.assertIn("NXDOMAIN", (cluster.folder / "dnsmasq.log").read_text())

    def test_a_name_server_that_starts_late(self):
        cluster = self.cluster(dns=False)
        controller = pods.Controller(cluster, manifests.of(JOB, program(TRAIN, 2)))
        time.sleep(3)
        cluster.start_dns()
        self.check_trained(cluster, controller)
        self.assertEqual(len(cluster.processes), 2, "a pod failed")

    def test_a_name_that_never_comes_is_an_error_within_the_timeout(self):
        cluster = self.cluster()
        def change(objects):
            program(["rank", "-1", "0"], 2)(objects)
            container(objects["Job"])["env"].append({"name": "DDP_TIMEOUT_MS", "value": "3000"})
        processes = [cluster.run(pod, known_after=None) for pod in manifests.of(JOB, change).pods]
        for process in processes:
            start = time.monotonic()
            self.assertEqual(cluster.wait(process, 10 * SLACK), 3, process.said)
            self.assertLess(time.monotonic() - start, 8 * SLACK)
            self.assertIn("digits-0.digits", process.said)

    def test_a_pod_that_is_killed_is_named_and_the_job_starts_again(self):
        cluster = self.cluster()
        workload = manifests.of(JOB, program(["stdbuf", "-oL", *TRAIN[:-1], "1000"]))  # does not end before one is killed
        controller = pods.Controller(cluster, workload)
        first = list(controller.now.values())
        cluster.until(lambda: "epoch " in first[0].said, "ranks do not train")
        first[2].kill()
        start = time.monotonic()
        for pod in workload.pods:
            pod.container["args"] = list(TRAIN)  # of those that are made again
        for process in first[:2] + first[3:]:
            self.assertNotEqual(cluster.wait(process, 30 * SLACK), 0)
            self.assertRegex(process.said, r"rank 2 \(pid \d+ on digits-2\)")
        self.assertLess(time.monotonic() - start, 15 * SLACK)
        self.assertTrue(controller.run(), cluster.logs())
        self.assertEqual(controller.failures, 4)  # so many of the backoffLimit

    def test_the_others_name_the_rank_that_died(self):
        cluster = self.cluster()
        processes = [cluster.run(pod) for pod in manifests.of(JOB, program(["rank", "2", str(int(signal.SIGKILL))])).pods]
        for process in processes:
            cluster.wait(process, 30 * SLACK)
        for process in processes[:2] + processes[3:]:
            self.assertEqual(process.process.returncode, 3, process.said)
            self.assertRegex(process.said, r"rank 2 \(pid \d+ on digits-2\) died")

    def test_a_pod_that_is_made_again_before_ranks_have_met(self):
        """The pod of rank 1, and of rank 0: its name still has the address of the pod before."""
        for index in (1, 0):
            with self.subTest(index=index):
                cluster = self.cluster()
                workload = manifests.of(JOB, program(TRAIN))
                last = workload.pods.pop()  # ranks cannot meet before it is there
                controller = pods.Controller(cluster, workload)
                cluster.until(lambda: f"digits-0.digits.{pods.DOMAIN} is" in (cluster.folder / "dnsmasq.log").read_text(), "nobody asks")
                time.sleep(1)
                controller.known_after = 2
                controller.now[f"digits-{index}"].kill()
                controller.step()
                controller.now[last.hostname] = cluster.run(last)
                self.check_trained(cluster, controller)

    def test_without_a_secret_the_error_says_how_to_make_one(self):
        def change(objects):
            program(TRAIN, 2)(objects)
            container(objects["Job"])["env"].remove(variable(objects["Job"], "DDP_SECRET_FILE"))
        self.check_refused(change, "DDP_ERROR_PERMISSION_DENIED", "DDP_SECRET_FILE")

    def test_a_secret_that_all_may_read_is_refused(self):
        def change(objects):
            program(TRAIN, 2)(objects)
            del objects["Job"]["spec"]["template"]["spec"]["volumes"][0]["secret"]["defaultMode"]
        self.check_refused(change, "DDP_SECRET_FILE: /etc/job/secret is open to other users")

    def check_refused(self, change, *texts):
        cluster = self.cluster()
        for process in [cluster.run(pod) for pod in manifests.of(JOB, change).pods]:
            self.assertNotEqual(cluster.wait(process, 20 * SLACK), 0)
            for text in texts:
                self.assertIn(text, process.said)

    def test_a_secret_in_the_environment(self):
        def change(objects):
            program(TRAIN, 2)(objects)
            variable(objects["Job"], "DDP_SECRET_FILE").update(
                name="DDP_SECRET", value=None, valueFrom={"secretKeyRef": {"name": "job-secret", "key": "secret"}})
        cluster = self.cluster()
        self.check_trained(cluster, pods.Controller(cluster, manifests.of(JOB, change)))

    def test_a_pod_ends_at_sigterm(self):
        """The trainer has no handler. As process 1 it would stay until SIGKILL."""
        cluster = self.cluster()
        processes = [cluster.run(pod) for pod in manifests.of(JOB, program(["rank", "meet", "/nowhere"], 2)).pods]
        cluster.until(lambda: all("has met" in process.said for process in processes), "ranks do not meet")
        for process in processes:
            self.assertLess(cluster.delete(process, grace=30), 5 * SLACK)


class ManyRanksAPod(Pods):
    """ddprun in each pod."""
    kinds = ((JOBSET, "JobSet"), (TRAINER, "TrainJob"))

    @staticmethod
    def program(words):
        def change(objects):
            if "TrainJob" in objects:
                objects["TrainJob"]["spec"]["trainer"]["args"] = list(words)
                return
            args = container(objects["JobSet"]["spec"]["replicatedJobs"][0]["template"])["args"]
            args[args.index("mnist"):] = words
        return change

    def test_names_that_are_known_late(self):
        for path, kind in self.kinds:
            with self.subTest(kind):
                cluster = self.cluster()
                controller = pods.Controller(cluster, manifests.of(path, self.program(TRAIN)), known_after=3)
                said = self.check_trained(cluster, controller)
                self.assertEqual(len(cluster.processes), 2, "a pod failed")
                self.assertIn("the host name 'digits-node-0-0.digits' cannot be resolved", said)

    def test_ddprun_starts_ranks_again_in_the_same_pods(self):
        for path, kind in self.kinds:
            with self.subTest(kind):
                cluster = self.cluster()
                once = '[ "$DDP_RESTART" = 1 ] || exec rank 3 9; exec '
                workload = manifests.of(path, self.program(["sh", "-c", once + " ".join(TRAIN)]))
                said = self.check_trained(cluster, pods.Controller(cluster, workload))
                self.assertEqual(len(cluster.processes), 2, "a pod was made again")
                self.assertRegex(said, r"rank 3 \(pid \d+\) was killed by signal 9")

    def test_many_ranks_have_records(self):
        """They need more than an eighth of /dev/shm, and the root is read-only."""
        def nine(test, *environment):
            def change(objects):
                pod = container(objects["JobSet"]["spec"]["replicatedJobs"][0]["template"])
                pod["args"][pod["args"].index("mnist"):] = ["sh", "-c", test]
                pod["args"][pod["args"].index("-n2")] = "-n9"
                pod.setdefault("env", []).extend(environment)
            return manifests.of(JOBSET, change).pods
        cluster = self.cluster()
        for process in [cluster.run(pod) for pod in nine('test -d "$DDP_RECORD"')]:
            self.assertEqual(cluster.wait(process, 30 * SLACK), 0, process.said)
        for process in [cluster.run(pod) for pod in nine('test -z "$DDP_RECORD"', {"name": "TMPDIR", "value": "/var"})]:
            self.assertEqual(cluster.wait(process, 30 * SLACK), 0, process.said)
            self.assertRegex(process.said, r"nothing is recorded.*/dev/shm has less than \d+ MiB free.* no folder can be made in /var ")

    def test_a_pod_that_is_lost_restarts_all(self):
        for path, kind in self.kinds:
            with self.subTest(kind):
                cluster = self.cluster()
                first = manifests.of(path, self.program(["rank", "meet", "/nowhere"]))
                controller = pods.Controller(cluster, first)
                cluster.until(lambda: sum(process.said.count("has met") for process in controller.now.values()) == 4, "ranks do not meet")
                controller.workload = manifests.of(path, self.program(TRAIN))
                controller.known_after = 2
                controller.now["digits-node-0-0"].kill()
                self.check_trained(cluster, controller)
                self.assertEqual((controller.restarts, len(cluster.processes)), (1, 4))


if __name__ == "__main__":
    if reason := pods.why_impossible():
        print(f"skipped: {reason}")
        sys.exit(0)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unittest would go on after another exception
    unittest.main(verbosity=2)
