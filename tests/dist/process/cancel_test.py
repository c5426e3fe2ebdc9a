"""Threads that the program cancels inside a call: the call ends as it would have, and the thread after it."""
from jobs import BACKENDS, ProcessTest, main, run_job


class Cancel(ProcessTest):
    def test_store(self):
        """A wait for a key that nobody sets. The second thread may be cancelled at any moment."""
        results = run_job("tcp", [["join", "cancel=store", "allreduce"]])
        self.expect(results, "cancelled 1", "returned 1", "status DDP_ERROR_TIMEOUT", "allreduce 1", "done")
        self.expect(run_job("tcp", [["join", "cancel=async", "allreduce"]]), "allreduce 1", "done")

    def test_collectives(self):
        """Rank 1 waits for rank 0 in a call that is cancelled; later calls of the rank work, too."""
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                waits = ["join", "cancel=allreduce", "allreduce", "train=1"]
                results = run_job(backend, [["join", "nap=600", "allreduce=1000", "allreduce", "train=1"], waits])
                self.expect(results[1:], "cancelled 1", "returned 1", "value 3", "status DDP_OK", "allreduce 3", "done")
                self.expect(results[:1], "allreduce 3", "done")

    def test_steps(self):
        """ddp_grad_ready and ddp_finalize; rank 0's step comes later."""
        for backend in ("shm", "tcp"):
            with self.subTest(backend=backend):
                results = run_job(backend, [["join", "nap=600", "train=1", "allreduce"], ["join", "cancel=train", "allreduce"]])
                self.expect(results[1:], "cancelled 1", "returned 1")
                self.expect(results, results[0][1].splitlines()[0], "allreduce 3", "done")


if __name__ == "__main__":
    main()
