"""Ranks that meet on etcd, with real servers: they train, one dies, and the servers' leader dies while they train."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import jobs
from jobs import DEATH_S, READY, Job, expect_error, expect_fine, free_port, wait_until

PROGRAMS = ("etcd", "etcdctl")


class Servers:
    """A cluster of etcd. Leaving the `with` block kills it."""

    def __init__(self, count):
        self.folder = tempfile.mkdtemp(prefix="ddp-etcd-")
        clients = [free_port() for _ in range(count)]
        peers = [free_port() for _ in range(count)]
        everyone = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(peers))
        self.endpoints = [f"127.0.0.1:{port}" for port in clients]
        self.processes = []
        for i, endpoint in enumerate(self.endpoints):
            client, peer = f"http://{endpoint}", f"http://127.0.0.1:{peers[i]}"
            with open(f"{self.folder}/{i}.log", "w") as log:
                self.processes.append(subprocess.Popen(
                    ["etcd", "--name", f"m{i}", "--data-dir", f"{self.folder}/{i}", "--listen-client-urls", client,
                     "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                     "--initial-cluster", everyone, "--logger", "zap", "--log-outputs", "stderr"],
                    stdout=log, stderr=log))

    def control(self, *arguments):
        environment = {**os.environ, "ETCDCTL_API": "3"}
        return subprocess.run(["etcdctl", "--endpoints", ",".join(self.endpoints), *arguments], capture_output=True, text=True,
                              env=environment, timeout=30)

    def __enter__(self):
        wait_until(lambda: self.control("endpoint", "health").returncode == 0)
        return self

    def uri(self, name):
        return f"etcd://{','.join(self.endpoints)}/{name}?ttl=5"

    def kill_leader(self):
        # endpoint, ID, version, size, is leader, ...
        for line in self.control("endpoint", "status").stdout.splitlines():
            fields = line.split(", ")
            if fields[4] == "true":
                self.processes[self.endpoints.index(fields[0])].kill()
                return
        raise jobs.Failure("no server leads")

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)


class Etcd(unittest.TestCase):
    def setUp(self):
        missing = [program for program in PROGRAMS if not shutil.which(program)]
        if missing:
            print(f"skipped: no {' and no '.join(missing)} (etcd-server, etcd-client)")
            sys.exit(77)

    def test_three_ranks_train_and_leave_nothing(self):
        with Servers(1) as servers, Job("etcd", 3, uri=servers.uri("train")) as job:
            for rank in range(3):
                job.start(rank, READY + ["begin", "fill=4", "finalize"])
            expect_fine(job.ranks.values())
            self.assertEqual(servers.control("get", "--prefix", "/ddp/", "--keys-only").stdout.strip(), "")

    def test_a_rank_dies(self):
        with Servers(1) as servers, Job("etcd", 3, uri=servers.uri("death")) as job:
            for rank in range(3):
                job.start(rank, READY + ["mark=ready"] + (["pause=here"] if rank == 1 else ["begin", "fill=4", "finalize"]))
            job.all_at("ready")
            killed = job.ranks[1].signal(signal.SIGKILL)
            # A connection between the ranks breaks long before the lease ends. Until then the rank is one that does not answer.
            expect_error(job.others(1).values(), ("RANK_FAILED", "TIMEOUT"), 1, killed, DEATH_S)

    def test_ranks_do_not_notice_the_death_of_the_leader(self):
        with Servers(3) as servers, Job("etcd", 3, uri=servers.uri("leader")) as job:
            for rank in range(3):
                job.start(rank, READY + ["begin", "fill=4", "finalize", "pause=half", "begin", "fill=4", "finalize"])
            job.all_at("half")
            servers.kill_leader()
            time.sleep(3)
            for worker in job.ranks.values():
                worker.go()
            expect_fine(job.ranks.values())


if __name__ == "__main__":
    jobs.main()
