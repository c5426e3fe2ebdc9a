"""ddp.DistributedSampler: which samples each rank takes."""
import unittest

import ddp
import support


def parts(length, world_size, epoch=0, **options):
    """The indices of each rank."""
    samplers = [ddp.DistributedSampler(length, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers], [len(sampler) for sampler in samplers]


class Sampler(unittest.TestCase):
    def each(self, ends):
        for length in (0, 1, 2, 7, 8, 9, 100):
            for world_size in (1, 2, 3, 4):
                found, lengths = parts(length, world_size, ends=ends)
                self.assertEqual(lengths, [len(part) for part in found])
                yield length, world_size, lengths, sorted(sum(found, []))

    def test_keep(self):
        for length, _, lengths, found in self.each("keep"):
            self.assertEqual(found, list(range(length)))
            self.assertLessEqual(max(lengths) - min(lengths), 1)

    def test_drop(self):
        for length, world_size, lengths, found in self.each("drop"):
            self.assertEqual(len(set(found)), length // world_size * world_size)
            self.assertEqual(len(set(lengths)), 1)

    def test_pad(self):
        for length, world_size, lengths, found in self.each("pad"):
            self.assertEqual(set(found), set(range(length)))
            self.assertLess(len(found) - length, world_size)
            self.assertEqual(len(set(lengths)), 1)

    def test_order(self):
        self.assertEqual(parts(6, 2, shuffle=False)[0], [[0, 2, 4], [1, 3, 5]])
        self.assertEqual(parts(50, 2), parts(50, 2))
        self.assertNotEqual(parts(50, 2), parts(50, 2, epoch=1))
        self.assertNotEqual(parts(50, 2), parts(50, 2, seed=1))
        # The order of a job that goes on with another version of Python is the same.
        self.assertEqual(parts(10, 1, epoch=3, seed=5)[0], [[1, 6, 9, 5, 4, 3, 8, 0, 7, 2]])

    def test_group(self):
        with support.alone() as group:
            sampler = ddp.DistributedSampler(5, group)
            self.assertEqual((sorted(sampler), len(sampler), sampler.rank, sampler.world_size), ([0, 1, 2, 3, 4], 5, 0, 1))

    def test_errors(self):
        with support.raises(self, ValueError, "group", "rank and world_size"):
            ddp.DistributedSampler(5)
        with support.raises(self, ValueError, "group", "rank and world_size"):
            ddp.DistributedSampler(5, rank=0)
        with support.raises(self, ValueError, "rank", "2"):
            ddp.DistributedSampler(5, rank=2, world_size=2)
        with support.raises(self, ValueError, "length", "-1"):
            ddp.DistributedSampler(-1, rank=0, world_size=2)
        with support.raises(self, ValueError, "ends", "'stop'"):
            ddp.DistributedSampler(5, rank=0, world_size=2, ends="stop")


if __name__ == "__main__":
    support.main()
