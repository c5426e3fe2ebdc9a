"""Leftovers of groups and contexts: there are none."""
import unittest

import jobs
from jobs import KINDS, Job, expect_fine


class Leak(unittest.TestCase):
    """Groups and contexts leave no thread and no file behind."""

    def test_sixty_times(self):
        for kind in KINDS:
            with self.subTest(kind), Job(kind, 2) as job:
                for rank in range(2):
                    job.start(rank, ["cycles=60"])
                expect_fine(job.ranks.values())
                for worker in job.ranks.values():
                    for what in ("threads", "files"):
                        early, late = worker.values[f"early_{what}"], worker.values[f"late_{what}"]
                        self.assertLessEqual(late, early + 1, f"{worker.name} {what}")


if __name__ == "__main__":
    jobs.main()
