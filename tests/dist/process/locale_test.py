"""A rank whose program groups digits and writes a decimal comma, beside one that does not: every number arrives as it was sent."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from jobs import BACKENDS, ProcessTest, error_in, free_port, main, run_job

HOOKS = ("powersgd:rank=2,start=1,min_rate=1.5", "onebit", "topk:ratio=0.25", "quantize_per_channel", "bf16(powersgd)", "chunks:ratio=0.25,momentum=0.5,warmup=2")


def values(text):
    """The lines of a rank that hold a number."""
    return [line for line in text.splitlines() if line.split(" ")[-1].lstrip("-").isdigit()]


class Locale(ProcessTest):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ddp-locale-")

    def tearDown(self):
        shutil.rmtree(self.folder)

    def german(self):
        """The verb and the variables for a C locale with a decimal comma, or a skipped test."""
        sources = pathlib.Path("/usr/share/i18n/locales/de_DE")
        if not shutil.which("localedef") or not sources.exists():
            self.skipTest("the system has no sources of locales")
        target = os.path.join(self.folder, "de_DE.UTF-8")
        subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", target], check=False, capture_output=True, timeout=60)
        return "locale=de_DE.UTF-8", {"LOCPATH": self.folder}

    def test_every_backend(self):
        """Rank 0 runs the store and tells what others read; rank 1 reads."""
        verbs = ["join", "allreduce", "allreduce=5", "train=4"]
        for backend in BACKENDS:
            plain = run_job(backend, [verbs, verbs])
            self.expect(plain, "allreduce 3", "done")
            for strange in range(2):
                with self.subTest(backend=backend, strange=strange):
                    results = run_job(backend, [(["numpunct"] if rank == strange else []) + verbs for rank in range(2)])
                    self.expect(results, *values(plain[0][1]), "done")

    def test_many_ranks(self):
        """Ranks from 10 on are written with two digits, also by Gloo."""
        for backend in ("gloo", "hierarchical", "shm"):
            with self.subTest(backend=backend):
                results = run_job(backend, [(["numpunct"] if rank % 2 else []) + ["join", "allreduce=100"] for rank in range(12)])
                self.expect(results, "allreduce 78", "done")

    def test_c_locale(self):
        verb, variables = self.german()
        verbs = ["join", "allreduce", "hook=powersgd:rank=2,start=1,epsilon=0.001", "train=4"]
        plain = run_job("tcp", [verbs, verbs])
        self.expect(plain, "allreduce 3", "done")
        for strange in range(2):
            with self.subTest(strange=strange):
                results = run_job("tcp", [([verb] if rank == strange else []) + verbs for rank in range(2)], env=variables)
                self.expect(results, *values(plain[0][1]), "done")

    def test_hooks(self):
        """The names and numbers of a hook are hashed into signatures; its state goes from one locale to the other and back."""
        for hook in HOOKS:
            with self.subTest(hook=hook):
                path = os.path.join(self.folder, "state")
                first = [["join", f"hook={hook}", "train=4", f"save={path}{rank}"] for rank in range(2)]
                second = [["join", f"hook={hook}", f"load={path}{rank}", "train=3"] for rank in range(2)]
                plain_first, plain_second = run_job("shm", first), run_job("shm", second)
                for results in (plain_first, plain_second):
                    self.expect(results, "done")
                results = run_job("shm", [["numpunct", *first[0]], first[1]])
                self.expect(results, *values(plain_first[0][1]), "done")
                results = run_job("shm", [second[0], ["numpunct", *second[1]]])
                self.expect(results, *values(plain_second[0][1]), "done")

    def test_elastic(self):
        """Rosters are text in the store."""
        for backend in ("tcp", "shm"):
            for strange in range(2):
                with self.subTest(backend=backend, strange=strange):
                    uri = f"file://{self.folder}/store-{backend}-{strange}"
                    results = run_job(backend, [(["numpunct"] if rank == strange else []) + ["elastic=5"] for rank in range(2)], uri=uri)
                    self.expect(results, "done")
                    self.assertEqual(values(results[0][1]), values(results[1][1]))

    def test_client(self):
        """The message about a store that is not there."""
        port = free_port()
        [(status, text)] = run_job("tcp", [["numpunct", "client"]], uri=f"tcp://127.0.0.1:{port}")
        self.assertEqual(status, 3, text)
        status, _, message = error_in(text)
        self.assertEqual(status, "DDP_ERROR_UNAVAILABLE", text)
        self.assertIn(f":{port}", message)


if __name__ == "__main__":
    main()
