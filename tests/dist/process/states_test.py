"""Processes with limits, signals, descriptors and file systems that most programs do not have: right numbers, or an error that says why."""
import os
import resource
import shutil
import signal
import subprocess
import time

from jobs import BACKENDS, PATIENCE_S, SLACK, ProcessTest, Rank, error_in, free_port, main, run_job

VERBS = ["join", "allreduce", "train=3", "allreduce=7"]


def without_standard_descriptors():
    """The rank's output goes to a descriptor that it does not know, so only its status tells."""
    for descriptor in range(3):
        os.close(descriptor)


class States(ProcessTest):
    def expect_job(self, verbs=(VERBS, VERBS), backends=BACKENDS, **options):
        for backend in backends:
            with self.subTest(backend=backend):
                self.expect(run_job(backend, verbs, **options), "allreduce 3", "done")

    def test_descriptors_0_to_2_are_closed(self):
        """Sockets then have these numbers, and what libddp logs must not go into one."""
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                for status, _ in run_job(backend, [VERBS, VERBS], env={"DDP_LOG_LEVEL": "debug"}, preexec_fn=without_standard_descriptors):
                    self.assertEqual(status, 0)

    def test_sigpipe_and_umask(self):
        def prepare():
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.umask(0o777)

        self.expect_job(preexec_fn=prepare)

    def test_signals(self):
        """A handler without SA_RESTART runs a thousand times a second."""
        self.expect_job(verbs=[["signals", *VERBS], ["signals", *VERBS]])

    def test_small_stack(self):
        verbs = ["join", "small_stack=64", "allreduce"]
        self.expect_job(verbs=[verbs, verbs])

    def test_spawn(self):
        verbs = ["join", "allreduce", "spawn", "train=1", "allreduce"]
        self.expect_job(verbs=[verbs, verbs])

    def test_few_descriptors(self):
        """Whatever the limit is: the right numbers, or LIMIT and what to raise; never a hang or a signal."""
        for backend in ("shm", "tcp"):
            for limit in (5, 8, 12, 16, 20, 24, 32):
                with self.subTest(backend=backend, limit=limit):
                    def prepare(limit=limit):
                        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

                    self.expect_all_or_error(run_job(backend, [VERBS], preexec_fn=prepare), ("ulimit -n",))

    def test_one_rank_has_few_descriptors(self):
        """That rank says so, and the others name it and its reason at once, however early it failed."""
        for backend, limit in (("tcp", 6), ("shm", 8), ("gloo", 9), ("tcp", 12)):
            with self.subTest(backend=backend, limit=limit):
                results = self.run_limited(backend, 1, limit, within_s=15)
                said = {error_in(text) for _, text in results}
                self.assertEqual(len(said), 1, said)
                status, culprit, message = said.pop()
                self.assertEqual((status, culprit), ("DDP_ERROR_LIMIT", 1), message)
                self.assertRegex(message, r"^rank 1 \(pid \d+ on .*\) could not join group 'world': .*ulimit -n")

    def test_store_has_few_descriptors(self):
        """Rank 0 cannot host a store for all ranks: it says so before any of them has connected."""
        for limit in (14, 20, 23):
            with self.subTest(limit=limit):
                (status, text), *others = self.run_limited("tcp", 0, limit, verbs=["timeout=3000", "join"])
                self.assertEqual(status, 3, text)
                self.assertEqual(error_in(text)[0], "DDP_ERROR_LIMIT", text)
                self.assertRegex(text, r"the store at tcp://127.0.0.1:\d+ for 3 ranks cannot start: .*ulimit -n")
                for status, text in others:
                    self.assertEqual(status, 3, text)
                    self.assertEqual(error_in(text)[0], "DDP_ERROR_UNAVAILABLE", text)
                    self.assertIn("Check that the process that hosts it (rank 0 or the launcher) runs", text)

    def run_limited(self, backend, limited, limit, verbs=("join", "allreduce"), within_s=PATIENCE_S):
        """Three ranks, of which one has so few descriptors."""
        def prepare():
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        uri = f"tcp://127.0.0.1:{free_port()}"
        ranks = [Rank(rank, 3, uri, backend, verbs, preexec_fn=prepare if rank == limited else None) for rank in range(3)]
        deadline = time.monotonic() + within_s * SLACK
        results = [rank.end(deadline) for rank in ranks]
        for status, text in results:
            self.assertEqual(status, 3, text)
        return results

    def test_little_memory(self):
        for backend in ("shm", "tcp"):
            for mebibytes in (48, 64, 96, 128, 192, 256):
                with self.subTest(backend=backend, mebibytes=mebibytes):
                    def prepare(mebibytes=mebibytes):
                        resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))

                    results = run_job(backend, [VERBS], preexec_fn=prepare)
                    if results[0][0] == 127:  # too little for the loader
                        continue
                    self.expect_all_or_error(results, ("out of memory", "ulimit", "memory"))

    def expect_all_or_error(self, results, words):
        for status, text in results:
            if status == 0:
                self.assertIn("allreduce 1", text)
                continue
            self.assertEqual(status, 3, text)
            self.assertTrue(any(word in text for word in words), text)

    def test_no_proc(self):
        """A mount namespace without /proc: tcp needs none; shm says what is missing, on every rank."""
        if os.geteuid() != 0 or not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
            self.skipTest("no mount namespaces here")
        hides = "mount --make-rprivate / && umount -l /proc && exec \"$@\""
        for backend in ("tcp", "gloo", "shm", "hierarchical"):
            with self.subTest(backend=backend):
                uri = f"tcp://127.0.0.1:{free_port()}"
                worker = os.environ["DDP_PROCESS_WORKER"]
                ranks = [Rank(rank, 2, uri, backend, VERBS, command=("unshare", "-m", "sh", "-c", hides, "sh", worker) if rank else (worker,))
                         for rank in range(2)]
                deadline = time.monotonic() + PATIENCE_S
                results = [rank.end(deadline) for rank in ranks]
                if backend in ("tcp", "gloo", "hierarchical"):  # hierarchical has DDP_HOST_ID
                    self.expect(results, "allreduce 3", "done")
                    continue
                for status, text in results:
                    self.assertEqual(status, 3, text)
                    self.assertIn("is /proc mounted? Set DDP_HOST_ID", text)


if __name__ == "__main__":
    main()
