"""Two groups of one process: what happens in one explains what ranks see in the other."""
from jobs import ProcessTest, error_in, main, run_job

JOIN = ["join", "second"]
WAIT = [*JOIN, "allreduce_second"]


class Groups(ProcessTest):
    def errors(self, verbs, failing, backend="shm"):
        """(status, rank, message) of the ranks that fail, by rank: of `failing`, and of no other."""
        found = {}
        job = run_job(backend, verbs)
        for rank, (status, text) in enumerate(job):
            self.assertNotEqual(status, "hangs", text)
            if error := error_in(text):
                found[rank] = error
        self.assertEqual(sorted(found), failing, job)
        return found

    def test_first_cause(self):
        """A rank whose first group broke leaves the second one, or its process ends: the others say what came first."""
        first = "rank 1 called ddp_group_abort: out of cheese; that broke group 'world'"
        sentences = {"nap=0": f"^{first}, and rank 1 then left group 'second' while rank ",
                     "quit=4": rf"^{first}, and rank 1 \(pid .*\) ended: its process exited with status 4",
                     "quit=_exit": rf"^rank 1 \(pid .*\) died: .*; see also: {first}$"}
        for ends, sentence in sentences.items():
            for backend in ("shm", "tcp"):
                with self.subTest(ends=ends, backend=backend):
                    errors = self.errors([WAIT, [*JOIN, "nap=300", "abort=out of cheese", "nap=300", ends], WAIT], [0, 2], backend)
                    self.assertEqual(errors[0], errors[2])
                    status, culprit, message = errors[0]
                    self.assertEqual((status, culprit), ("DDP_ERROR_RANK_FAILED", 1), message)
                    self.assertRegex(message, sentence)
                    self.assertNotIn("ddp_join", message)

    def test_other_order(self):
        """Rank 0 waits in one group and rank 1 in the other: the sentence names both groups and both collectives."""
        verbs = ["timeout=1500", *JOIN]
        for backend in ("shm", "tcp"):
            with self.subTest(backend=backend):
                errors = self.errors([[*verbs, "allreduce"], [*verbs, "nap=200", "allreduce_second"]], [0, 1], backend)
                status, culprit, message = errors[0]
                self.assertEqual((status, culprit), ("DDP_ERROR_TIMEOUT", 1), message)
                self.assertRegex(message, r"^allreduce of 100000 f32 \(sum\), called by the program itself in group 'world': "
                                 r"rank 1 is alive but did not get there: rank 1 is at allreduce of 4 f32 \(sum\), called "
                                 r"by the program itself in group 'second', so the ranks use their groups in a different order; ")

    def test_a_rank_does_not_blame_itself(self):
        """A group is freed while its allreduce waits, or before that has begun. Over tcp the other rank may have all that it needs."""
        began = ("rank 0 left the group before its allreduce of 1000 f32 (sum), called by the program itself had ended; wait for each "
                 "work")
        for backend in ("shm", "tcp"):
            with self.subTest(backend=backend):
                (status, mine), (_, theirs) = run_job(backend, [["join", "abandon"], ["join", "nap=500", "allreduce=1000"]])
                self.assertEqual(status, 0, mine)
                self.assertTrue(f"abandoned {began}" in mine or "abandoned the group was freed" in mine, mine)
                self.assertTrue(f"error DDP_ERROR_RANK_FAILED 0 {began}" in theirs or (backend == "tcp" and "allreduce 2" in theirs) or
                                "rank 0 left the group while rank 1 still needed it for allreduce of 1000 f32" in theirs, theirs)


if __name__ == "__main__":
    main()
