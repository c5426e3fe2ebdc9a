"""A Slurm cluster of two nodes on this machine, from Debian's slurmctld, slurmd and munge: each node is a network namespace with a
name and an address of its own. Everything is in one folder, and gone at the end."""
import contextlib
import os
import pathlib
import subprocess
import sys

import hosts  # puts tools/bench/runs on the path
import namespaces  # tools/bench/runs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from launchers import CLEAN  # noqa: E402  (tests/support)

NODES = ("n1", "n2")
NEEDED = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo", "scancel", "munged", "unshare", "hostname")
# In a namespace of mounts and names of hosts: what a command of this node sees.
ENTER = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'
CONF = """
ClusterName=libddp
SlurmctldHost=n1({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=5
InactiveLimit=0
MinJobAge=300
RebootProgram=/bin/true
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def why_impossible():
    """None where there can be a cluster, else the reason."""
    return hosts.why_impossible(NEEDED, "tools/setup slurm")


class Cluster(hosts.Hosts):
    folder_prefix = "ddp-slurm-"

    def __init__(self):
        self.daemons = []
        self.link = None

    def start(self):
        self.link = namespaces.Link(None)
        self.link.__enter__()
        (self.folder / "state").mkdir()
        addresses = dict(zip(NODES, self.link.addresses))
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in addresses.items()))
        nodes = "\n".join(f"NodeName={name} NodeAddr={address} CPUs=8 State=UNKNOWN" for name, address in addresses.items())
        (self.folder / "slurm.conf").write_text(CONF.format(folder=self.folder, address=addresses["n1"], nodes=nodes))
        # None are used. slurmd would not start on a machine that has none, if it looked for them.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        for name in NODES:
            (self.folder / f"spool.{name}").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.daemon("munged", "n1", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                    f"--pid-file={self.folder}/munge.pid", f"--seed-file={self.folder}/munge.seed", f"--log-file={self.folder}/munge.log")
        self.until(lambda: (self.folder / "munge.socket").exists(), "munged does not start")
        self.daemon("slurmctld", "n1", "slurmctld", "-D", "-f", f"{self.folder}/slurm.conf")
        for name in NODES:
            self.daemon(f"slurmd-{name}", name, "slurmd", "-D", "-N", name, "-f", f"{self.folder}/slurm.conf")
        self.until(lambda: self.run("sinfo", "-h", "-o", "%T %D").stdout.strip() == "idle 2", "the nodes do not become idle")

    def environment(self):
        return {**CLEAN, "PATH": hosts.PATH, "SLURM_CONF": f"{self.folder}/slurm.conf"}

    def on(self, node, *command):
        """A command as this node runs it."""
        return [*self.link.prefix(NODES.index(node)), "unshare", "--mount", "--uts", "sh", "-c", ENTER, str(self.folder / "hosts"), node,
                *map(str, command)]

    def daemon(self, name, node, *command):
        with open(self.folder / f"{name}.out", "wb") as out:
            self.daemons.append(subprocess.Popen(self.on(node, *command), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                 env=self.environment(), start_new_session=True))

    def run(self, *command, timeout=60, **more):
        """On n1, where users log in."""
        return subprocess.run(self.on("n1", *command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=timeout, check=False, cwd=self.folder, env={**self.environment(), **more})

    def state_of(self, job):
        shown = self.run("scontrol", "show", "job", "-o", job).stdout
        return next((word.split("=")[1] for word in shown.split() if word.startswith("JobState=")), shown)

    def submit(self, *arguments, **more):
        said = self.run("sbatch", "--parsable", *arguments, **more)
        if said.returncode != 0:
            raise AssertionError(f"sbatch: {said.stdout}")
        return said.stdout.strip()

    def logs(self):
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(self.folder.glob("*"))
                         if path.suffix in (".log", ".out") and path.stat().st_size)

    def end(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=10)
        if not self.link:
            return
        self.kill_all_in(self.link.names)  # daemons that stay, and what slurmd started and left
        for daemon in self.daemons:
            daemon.poll()
        self.link.__exit__()
