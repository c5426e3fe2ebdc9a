"""Real etcd servers, for tests of jobs whose ranks meet there."""
import os
import shutil
import subprocess
import tempfile
import time

from ports import free_port
from slack import SLACK


def missing_programs():
    """What a test needs and is not there, in words; None: nothing."""
    missing = [program for program in ("etcd", "etcdctl") if not shutil.which(program)]
    return f"no {' and no '.join(missing)} (etcd-server, etcd-client)" if missing else None


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
        deadline = time.monotonic() + 60 * SLACK
        while self.control("endpoint", "health").returncode != 0:
            if time.monotonic() > deadline:
                self.__exit__()
                raise AssertionError("etcd does not start")
            time.sleep(0.1)
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
        raise AssertionError("no server leads")

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)
