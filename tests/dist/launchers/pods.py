"""Pods on this machine, without a cluster: each is a process with namespaces, an address, a file system and a user of its own. A real
DNS server, Debian's dnsmasq, knows their names as late as a test wants. Everything is in one folder, and gone at the end.

Not simulated: limits of resources, seccomp, who schedules pods, and the API server."""
import contextlib
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import hosts  # puts tools/bench/runs on the path
import manifests
import namespaces  # tools/bench/runs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from slack import SLACK  # noqa: E402  (tests/support)

NEEDED = ("dnsmasq", "tini", "unshare", "setpriv", "chroot", "mount", "ip")
PREFIX, DNS = "10.210.1.", "10.210.1.1"
DOMAIN = "default.svc.cluster.local"
ENTRYPOINT = ["tini", "--"]  # of the image
NUMBERS = itertools.count()
# Before a command: the kernel ends it with the thread that started it, unless its user or group changes.
WITH_THE_TEST = ["setpriv", "--pdeathsig", "KILL"]
# A root of its own, as a container runtime makes it: the system's /usr, below it the folder of the image; /dev with shared memory of
# 64 MiB; volumes of secrets, which are chains of links.
ENTER = r"""
set -eu
root=$1 image=$2 name=$3 user=$4 group=$5 groups=$6 read_only=$7 volumes=$8
shift 8
mount --bind "$root" "$root"
mount --bind -o ro /usr "$root/usr"
mount --bind -o ro "$image" "$root/usr/local"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for device in null zero urandom; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
mkdir "$root/dev/shm"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/dev/shm"
for volume in $volumes; do
    IFS=: read -r path secret mode << end
$volume
end
    mkdir -p "$root$path"
    mount -t tmpfs -o mode=1777 tmpfs "$root$path"
    [ "$secret" != empty ] || continue
    mkdir "$root$path/..1"
    for key in "$secret"/*; do
        cp "$key" "$root$path/..1/"
        ln -s "..data/${key##*/}" "$root$path/${key##*/}"
        chown "0:${groups:-0}" "$root$path/..1/${key##*/}"
        chmod "$mode" "$root$path/..1/${key##*/}"
    done
    ln -s ..1 "$root$path/..data"
    mount -o remount,ro "$root$path"
done
[ "$read_only" = 0 ] || mount -o remount,bind,ro "$root"
hostname "$name"
if [ -n "$groups" ]; then set -- --groups "$groups" "$@"; else set -- --clear-groups "$@"; fi
exec chroot "$root" setpriv --pdeathsig KILL --reuid "$user" --regid "$group" --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


def why_impossible():
    """None where there can be pods, else the reason."""
    return hosts.why_impossible(NEEDED, "tools/setup")


class Process:
    """A pod that runs, or has run."""

    def __init__(self, pod, process, log, namespace):
        self.pod, self.process, self.log, self.namespace = pod, process, log, namespace

    @property
    def said(self):
        return self.log.read_text(errors="replace")

    def pids(self):
        """The processes inside, in the numbers of this machine; the container's process 1 first."""
        return sorted((pid for pid in hosts.pids_of(self.namespace) if pid != self.process.pid), key=pid_inside)

    def signal(self, number):
        """To the container's process 1, the kernel ends all others with it."""
        with contextlib.suppress(ProcessLookupError):
            for pid in self.pids()[:1]:
                os.kill(pid, number)

    def kill(self):
        """The pod, at once."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10 * SLACK)
        self.process.kill()  # a pod that has not begun
        self.process.wait()


def pid_inside(pid):
    """The number that a process has in its own namespace."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return sys.maxsize


class Cluster(hosts.Hosts):
    """image: {path below /usr/local: file}. secrets: {name: {key: value}}."""
    folder_prefix = "ddp-pods-"
    bound = 30 * SLACK

    def __init__(self, image, secrets, dns=True):
        self.image, self.secrets, self.with_dns = image, secrets, dns
        self.names = f"ddp{os.getpid()}x{next(NUMBERS)}"
        self.node = f"{self.names}n"
        self.processes, self.namespaces, self.timers, self.records = [], [], [], {}
        self.lock, self.dns = threading.Lock(), None

    def start(self):
        for path, source in self.image.items():
            target = self.folder / "image" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, target)
        for name, keys in self.secrets.items():
            (self.folder / "secrets" / name).mkdir(parents=True)
            for key, value in keys.items():
                (self.folder / "secrets" / name / key).write_text(value)
        namespaces.ip("netns", "add", self.node)
        self.namespaces.append(self.node)
        namespaces.ip("-n", self.node, "link", "set", "lo", "up")
        # Without an address of its own a bridge changes it while pods join, and those that knew the old one are not heard.
        namespaces.ip("-n", self.node, "link", "add", "pods", "address", "02:00:00:00:00:01", "type", "bridge")
        namespaces.ip("-n", self.node, "address", "add", f"{DNS}/24", "dev", "pods")
        namespaces.ip("-n", self.node, "link", "set", "pods", "up")
        (self.folder / "records").write_text("")
        if self.with_dns:
            self.start_dns()

    def start_dns(self):
        """Answers NXDOMAIN to all names but those of `publish`. Before dnsmasq says that it has started, SIGHUP would end it or be lost."""
        said = self.folder / "dnsmasq.log"
        with self.lock, open(said, "wb") as log:
            self.dns = subprocess.Popen(
                [*WITH_THE_TEST, "ip", "netns", "exec", self.node, shutil.which("dnsmasq", path=hosts.PATH),
                 "--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--group=root", "--pid-file=", "--no-hosts", "--no-resolv",
                 f"--addn-hosts={self.folder}/records", f"--listen-address={DNS}", "--bind-interfaces", "--local=/#/", "--log-facility=-",
                 "--log-queries"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self.until(lambda: "started, version" in said.read_text(errors="replace"), "dnsmasq does not start")

    def publish(self, pod, address):
        """The record of a pod's name, in place of the one that it had."""
        with self.lock:
            self.records[f"{pod.hostname}.{pod.subdomain}.{DOMAIN}"] = address
            (self.folder / "records").write_text("".join(f"{address} {name}\n" for name, address in self.records.items()))
            if self.dns:
                self.dns.send_signal(signal.SIGHUP)

    def later(self, seconds, action, *arguments):
        timer = threading.Timer(seconds, action, arguments)
        self.timers.append(timer)
        timer.start()

    def attach(self):
        """A network namespace with an address of its own, which no pod has had before."""
        number = len(self.namespaces)
        name, address = f"{self.names}p{number}", f"{PREFIX}{number + 9}"
        namespaces.ip("netns", "add", name)
        self.namespaces.append(name)
        namespaces.ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"pod{number}", "netns", self.node)
        namespaces.ip("-n", self.node, "link", "set", f"pod{number}", "master", "pods", "up")
        namespaces.ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        namespaces.ip("-n", name, "link", "set", "eth0", "up")
        namespaces.ip("-n", name, "link", "set", "lo", "up")
        return name, address

    def make_root(self, folder, pod, address):
        """The files that the kubelet and the container runtime put into the file system of a pod."""
        for name in ("usr", "etc", "proc", "dev", "tmp"):
            (folder / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            if (pathlib.Path("/") / name).is_symlink():
                (folder / name).symlink_to(f"usr/{name}")
        own = f"{pod.hostname}.{pod.subdomain}.{DOMAIN} {pod.hostname}"
        (folder / "etc/hosts").write_text(f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{address} {own}\n")
        (folder / "etc/resolv.conf").write_text(f"search {DOMAIN} svc.cluster.local cluster.local\nnameserver {DNS}\noptions ndots:5\n")
        (folder / "etc/nsswitch.conf").write_text("hosts: files dns\n")
        for name in ("ld.so.cache", "alternatives"):
            if os.path.isdir(f"/etc/{name}"):
                shutil.copytree(f"/etc/{name}", folder / "etc" / name, symlinks=True)
            elif os.path.exists(f"/etc/{name}"):
                shutil.copy(f"/etc/{name}", folder / "etc" / name)

    def volumes_of(self, pod, fs_group):
        """PATH:FOLDER:MODE of each secret that is mounted, and PATH:empty: of a folder that is empty at first. With an fsGroup the kubelet
        lets that group read the files of a secret."""
        volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
        for mount in pod.container.get("volumeMounts", []):
            if "emptyDir" in volumes[mount["name"]]:
                yield f"{mount['mountPath']}:empty:"
                continue
            secret = volumes[mount["name"]]["secret"]
            mode = secret.get("defaultMode", 0o644) | (0o440 if fs_group else 0)
            yield f"{mount['mountPath']}:{self.folder}/secrets/{secret['secretName']}:{mode:o}"

    def run(self, pod, known_after=0):
        """Starts a pod, whose name is known after so many seconds; None: never."""
        number = len(self.processes)
        namespace, address = self.attach()
        root = self.folder / f"root{number}"
        self.make_root(root, pod, address)
        security = {**pod.spec["securityContext"], **pod.container["securityContext"]}
        if not security.get("runAsNonRoot") or security.get("allowPrivilegeEscalation", True):
            raise ValueError("the pod runs as root, or may become root")
        group = str(security.get("fsGroup", ""))
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": pod.hostname, "HOME": "/", "LD_LIBRARY_PATH": "/usr/local/lib",
                       "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        environment.update(manifests.environment_of(pod, self.secrets))
        command = [*WITH_THE_TEST, "ip", "netns", "exec", namespace,
                   "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER,
                   "sh", root, self.folder / "image", pod.hostname, security["runAsUser"], security["runAsGroup"], group,
                   int(security.get("readOnlyRootFilesystem", False)), " ".join(self.volumes_of(pod, group)),
                   *manifests.command_of(pod, ENTRYPOINT, environment)]
        log = self.folder / f"pod{number}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                       env={**environment, "PATH": f"{environment['PATH']}:/usr/sbin:/sbin"}, start_new_session=True)
        self.processes.append(Process(pod, process, log, namespace))
        if known_after is not None:
            self.later(known_after, self.publish, pod, address)
        return self.processes[-1]

    def wait(self, process, seconds):
        try:
            return process.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{process.pod.hostname} does not end within {seconds} s\n{self.logs()}") from None

    def delete(self, process, grace=30):
        """As the kubelet does: SIGTERM to process 1, and SIGKILL after the time of grace. Returns how long that took."""
        start = time.monotonic()
        process.signal(signal.SIGTERM)
        try:
            process.process.wait(timeout=grace)
        except subprocess.TimeoutExpired:
            process.kill()
        return time.monotonic() - start

    def logs(self):
        return "\n".join(f"== {each.pod.hostname}, status {each.process.poll()}\n{each.said[-3000:]}" for each in self.processes)

    def end(self):
        for timer in self.timers:
            timer.cancel()
            timer.join()
        for process in self.processes:
            process.kill()
        if self.dns:
            self.dns.kill()
            self.dns.wait()
        self.kill_all_in(self.namespaces)
        for name in self.namespaces:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


class Controller:
    """Runs a workload to its end, as the Job controller does: a pod that fails is made again, until too many have failed; and as JobSet
    does: then all are ended and made again. Seconds are fewer than those of Kubernetes, which waits for 10 before it makes a pod again."""

    def __init__(self, cluster, workload, known_after=0, wait_before=0.5):
        self.cluster, self.workload, self.known_after, self.wait_before = cluster, workload, known_after, wait_before
        self.failures = self.restarts = 0
        self.now = {}
        self.start_all()

    def start_all(self):
        self.failures = 0
        for pod in self.workload.pods:
            self.now[pod.hostname] = self.cluster.run(pod, self.known_after)

    def step(self):
        """True: the workload has ended, well or not."""
        failed = [name for name, process in self.now.items() if process.process.poll() not in (None, 0)]
        self.failures += len(failed)
        if self.failures > self.workload.backoff_limit:
            for process in self.now.values():
                self.cluster.delete(process, grace=10)
            if self.restarts == self.workload.max_restarts:
                return True
            self.restarts += 1
            self.start_all()
        elif failed:
            time.sleep(self.wait_before)
            for name in failed:
                self.now[name] = self.cluster.run(self.now[name].pod, self.known_after)
        return all(process.process.poll() == 0 for process in self.now.values())

    def run(self, bound=60 * SLACK):
        self.cluster.until(self.step, "the workload does not end", bound)
        return all(process.process.poll() == 0 for process in self.now.values())
