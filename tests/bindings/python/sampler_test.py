"""ddp.DistributedSampler: which samples each rank takes."""
import random
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


class ShardRange(unittest.TestCase):
    def test_shares(self):
        for count in (0, 1, 5, 64, 2**62):
            for world_size in (1, 2, 3, 7, 65):
                shares = [ddp.shard_range(count, rank, world_size) for rank in range(world_size)]
                self.assertEqual([share.start for share in shares], [0] + [share.stop for share in shares[:-1]])
                self.assertEqual(shares[-1].stop, count)
                sizes = [share.stop - share.start for share in shares]
                self.assertLessEqual(max(sizes) - min(sizes), 1)

    def test_errors(self):
        for count, rank, world_size in ((-1, 0, 1), (1, -1, 1), (1, 1, 1), (1, 0, 0)):
            with self.assertRaises(ddp.InvalidArgumentError):
                ddp.shard_range(count, rank, world_size)


class ElasticSampler(unittest.TestCase):
    def test_whatever_the_memberships_each_sample_comes_once_in_an_epoch(self):
        """A job with random rosters, of which many fail before they have applied the step."""
        chance = random.Random(1)
        for _ in range(100):
            length, global_batch = chance.randrange(1, 200), chance.randrange(1, 40)
            options = {"shuffle": chance.random() < 0.8, "seed": chance.randrange(5)}
            samplers = {}  # by process, which keeps its own through rosters
            roster, newest, applied, step, epochs = [0], 0, [], 0, chance.randrange(1, 4)
            steps = epochs * ddp.ElasticSampler(length, global_batch).steps_per_epoch
            while step < steps:
                if chance.random() < 0.3:
                    roster = [member for member in roster if chance.random() < 0.7]
                    joining = range(newest + 1, newest + 1 + chance.randrange(0 if roster else 1, 4))
                    roster, newest = roster + list(joining), newest + len(joining)
                taken = []
                for rank, member in enumerate(roster):
                    sampler = samplers.setdefault(member, ddp.ElasticSampler(length, global_batch, **options))
                    taken.append(sampler.batch(step, rank, len(roster)))
                if chance.random() < 0.7:
                    applied.append(sum(taken, []))
                    self.assertEqual(len(applied[-1]), sampler.size(step))
                    self.assertLessEqual(max(map(len, taken)) - min(map(len, taken)), 1)
                    step += 1
            alone = ddp.ElasticSampler(length, global_batch, **options)
            self.assertEqual(applied, [alone.batch(step, 0, 1) for step in range(steps)])
            for epoch in range(epochs):
                each = alone.steps_per_epoch
                self.assertEqual(sorted(sum(applied[epoch * each:(epoch + 1) * each], [])), list(range(length)))

    def test_order(self):
        sampler = ddp.ElasticSampler(10, 4, shuffle=False)
        self.assertEqual(sampler.steps_per_epoch, 3)
        self.assertEqual([sampler.batch(step, 0, 1) for step in (2, 3)], [[8, 9], [0, 1, 2, 3]])
        self.assertEqual([sampler.batch(2, rank, 3) for rank in range(3)], [[8], [9], []])
        shuffled = ddp.ElasticSampler(50, 50)
        self.assertNotEqual(shuffled.batch(0, 0, 1), shuffled.batch(1, 0, 1))
        self.assertNotEqual(shuffled.batch(0, 0, 1), ddp.ElasticSampler(50, 50, seed=1).batch(0, 0, 1))
        # A rank with another version of Python may join.
        self.assertEqual(ddp.ElasticSampler(10, 10, seed=5).batch(3, 0, 1), [1, 6, 9, 5, 4, 3, 8, 0, 7, 2])

    def test_errors(self):
        with support.raises(self, ValueError, "length", "0"):
            ddp.ElasticSampler(0, 4)
        with support.raises(self, ValueError, "global_batch", "0"):
            ddp.ElasticSampler(4, 0)
        with support.raises(self, ValueError, "step", "-1"):
            ddp.ElasticSampler(4, 4).batch(-1, 0, 1)
        with self.assertRaises(ddp.InvalidArgumentError):
            ddp.ElasticSampler(4, 4).batch(0, 2, 2)


if __name__ == "__main__":
    support.main()
