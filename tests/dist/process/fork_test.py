"""A rank that forks: the child ends, frees, is refused, or has a job of its own. The parent and the other ranks go on."""
from jobs import BACKENDS, ProcessTest, main, run_job

AFTER = ["allreduce", "train=3"]


class Fork(ProcessTest):
    def fork(self, backend, how, forks):
        """`forks`: the rank that does. Rank 0 runs the store."""
        verbs = [["join", "allreduce", f"fork={how}" if rank == forks else "beside_fork", *AFTER] for rank in range(2)]
        results = run_job(backend, verbs)
        self.expect(results, "allreduce 3", "done")
        self.expect([results[forks]], "child 0")
        values = [[line for line in text.splitlines() if line.startswith("train")][-1] for _, text in results]
        self.assertEqual(values[0], values[1])
        return results[forks][1]

    def test_child_exits(self):
        """Destructors at namespace scope free what the child has inherited."""
        for backend in BACKENDS:
            for forks in range(2):
                with self.subTest(backend=backend, forks=forks):
                    self.fork(backend, "exit", forks)

    def test_child_frees(self):
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                self.fork(backend, "free", 1)

    def test_child_is_refused(self):
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                said = [line for line in self.fork(backend, "use", 1).splitlines() if line.startswith("child ddp_")]
                self.assertEqual(len(said), 9)
                for line in said:
                    self.assertRegex(line, "DDP_ERROR_INVALID_STATE .*belongs to the process that forked this one")

    def test_child_has_a_job(self):
        """The child joins a group of its own beside what it has inherited."""
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                text = self.fork(backend, "job", 1)
                self.assertIn("allreduce 1", text.splitlines(), text)


if __name__ == "__main__":
    main()
