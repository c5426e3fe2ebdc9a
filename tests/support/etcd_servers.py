"""A cluster of etcd servers on this machine."""
import os
import shutil
import subprocess
import tempfile
import time

from ports import free_port

PROGRAMS = ("etcd", "etcdctl")
READY_S = 30
MEMORY = "/dev/shm"
ENOUGH = 1 << 30


def what_is_missing():
    """A sentence, or None where clusters can be made."""
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    return f"no {' and no '.join(missing)} (etcd-server, etcd-client)" if missing else None


def data_parent():
    """The parent of the servers' folders: they wait for their disk at every write, and a busy disk may take seconds for that."""
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ENOUGH:
        return MEMORY
    return tempfile.gettempdir()


class Servers:
    """Leaving the `with` block kills them."""

    def __init__(self, count):
        self.folder = tempfile.mkdtemp(prefix="etcd-test-", dir=data_parent())
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
        end = time.monotonic() + READY_S
        while self.control("endpoint", "health").returncode != 0:
            if time.monotonic() > end:
                self.__exit__()
                raise RuntimeError("the servers of etcd do not start")
            time.sleep(0.1)
        return self

    def uri(self, name, ttl_s=5):
        return f"etcd://{','.join(self.endpoints)}/{name}?ttl={ttl_s}"

    def kill_leader(self):
        # endpoint, ID, version, size, is leader, ...
        for line in self.control("endpoint", "status").stdout.splitlines():
            fields = line.split(", ")
            if fields[4] == "true":
                self.processes[self.endpoints.index(fields[0])].kill()
                return
        raise RuntimeError("no server leads")

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)
