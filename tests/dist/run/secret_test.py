"""The job secret on an address that other machines could reach: who needs one, where it comes from, and where it must not appear.

The tests run in namespaces of their own that have such an address and names for it. Without the right to make these they are
skipped.
"""
import glob
import os
import re
import subprocess
import sys
import unittest

from ddprun_support import RANK, SLACK, Case, Result, free_port, start, until

HOST = "10.210.0.1"
SECRET = "4711 a secret of this test 4711"
# `both` has a loopback address as well.
HOSTS = f"127.0.0.1 localhost both\\n::1 localhost\\n127.0.1.1 debian\\n{HOST} node0 both\\n"
INSIDE = "DDP_TEST_INSIDE_NAMESPACE"
# Variables by which a launcher tells rank {rank} of two its place. None of them says that all ranks are on one machine.
LAUNCHERS = {
    "torchrun": {"TORCHELASTIC_RUN_ID": "x", "RANK": "{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": HOST},
    "slurm": {"SLURM_PROCID": "{rank}", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_NODELIST": HOST},
    "openmpi": {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": HOST},
    "kubernetes": {"JOB_COMPLETION_INDEX": "{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": HOST},
}


def clean_environment(**variables):
    names = ("DDP_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "SLURM_", "JOB_COMPLETION", "TORCHELASTIC")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(names)}, **variables}


def command_lines():
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                yield file.read()
        except OSError:
            pass


class SecretTest(Case):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.done = self.path("done")
        open(self.done, "w").close()  # ranks that meet end at once

    # Ranks of another launcher.

    def start_ranks(self, launcher, master=HOST, **variables):
        processes = []
        for rank in range(2):
            told = {name: value.format(rank=rank) for name, value in LAUNCHERS[launcher].items()}
            if "MASTER_ADDR" in told:
                told["MASTER_ADDR"] = master
            env = clean_environment(**told, MASTER_PORT=str(self.port), DDP_TIMEOUT_MS="30000", **variables)
            process = subprocess.Popen([RANK, "meet", self.done], env=env, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)
            processes.append(process)
        return processes

    def results_of_ranks(self, launcher, **settings):
        return [Result(process) for process in self.start_ranks(launcher, **settings)]

    def expect_meeting(self, results, warnings=0):
        for rank, result in enumerate(results):
            self.expect(result, 0)
            self.assertEqual(result.out, b"%d of 2 has met\n" % rank)
            self.assertEqual(result.err.count(b" warn: "), warnings, str(result))
        self.port = free_port()

    def test_ranks_without_a_secret_are_refused(self):
        for launcher in LAUNCHERS:
            for variables in ({}, {"DDP_SECRET": "hunter2"}, {"DDP_INSECURE": "0"}):
                with self.subTest(launcher, **variables):
                    for result in self.results_of_ranks(launcher, **variables):
                        self.expect(result, 3)
                        for words in (f"tcp://{HOST}:{self.port}", "16 bytes", "export DDP_SECRET=$(", "DDP_SECRET_FILE",
                                      "127.0.0.1", "DDP_INSECURE=1"):
                            self.assertIn(words.encode(), result.err)
                        self.assertNotIn(b"hunter2", result.err)

    def test_a_name_is_what_its_addresses_are(self):
        for name in ("node0", "both"):
            for result in self.results_of_ranks("torchrun", master=name):
                self.expect(result, 3)
                self.assertIn(f"'{name}' is {HOST}, which is not a loopback address".encode(), result.err)
                self.assertIn(b"torchrun: --local-addr", result.err)
        self.expect_meeting(self.results_of_ranks("torchrun", master="node0", DDP_SECRET=SECRET))
        self.expect_meeting(self.results_of_ranks("torchrun", master="localhost"))

    def test_ranks_with_a_secret_meet(self):
        file = self.write("job.secret", SECRET + "\n")
        for launcher in LAUNCHERS:
            for variables in ({"DDP_SECRET": SECRET}, {"DDP_SECRET_FILE": file}):
                with self.subTest(launcher, **variables):
                    self.expect_meeting(self.results_of_ranks(launcher, **variables))

    def test_insecure_ranks_meet_and_are_warned(self):
        results = self.results_of_ranks("torchrun", DDP_INSECURE="1")
        self.expect_meeting(results, warnings=1)
        for result in results:
            self.assertIn(f"{HOST}:".encode(), result.err)
            self.assertIn(b"any process that reaches its address can join", result.err)

    def test_files_that_others_can_read_are_refused(self):
        file = self.write("job.secret", SECRET, 0o644)
        for result in self.results_of_ranks("slurm", DDP_SECRET_FILE=file):
            self.expect(result, 3)
            self.assertIn(f"DDP_SECRET_FILE: {file} is open to other users: chmod 600 it".encode(), result.err)

    # Ranks of several ddpruns.

    def start_nodes(self, *options, **variables):
        nodes = []
        for node in range(2):
            logs = self.path(f"logs{node}")
            nodes.append(self.start("--nnodes", 2, "--node-rank", node, "-n", 2, "--rdzv", f"{HOST}:{self.port}",
                                    "--log-dir", logs, *options, RANK, "meet", self.done,
                                    env=clean_environment(DDP_LOG_LEVEL="debug", **variables)))
        return nodes

    def logs(self):
        return {path: self.read(path) for path in glob.glob(self.path("logs*/*"))}

    def test_nodes_meet_and_show_the_secret_nowhere(self):
        file = self.write("job.secret", SECRET + "\n")
        for options, variables in (((), {"DDP_SECRET": SECRET}), ((), {"DDP_SECRET_FILE": file}),
                                   (("--secret-file", file), {})):
            with self.subTest(options=options, **variables):
                os.remove(self.done)
                nodes = self.start_nodes(*options, **variables)
                met = until(lambda: sum(b" of 4 has met\n" in text for text in self.logs().values()) == 4, 30 * SLACK)
                seen = list(command_lines())
                open(self.done, "w").close()
                results = [Result(node) for node in nodes]
                self.assertTrue(met, "\n".join(map(str, results)))
                self.assertTrue(any(RANK.encode() in line for line in seen), "this test sees no command lines")
                for line in seen:
                    self.assertNotIn(SECRET.encode(), line)
                for result in results:
                    self.expect(result, 0)
                    self.assertNotIn(SECRET.encode(), result.out + result.err)
                for path, text in self.logs().items():
                    self.assertNotIn(SECRET.encode(), text, path)
                    os.remove(path)
                self.port = free_port()

    def test_node_0_says_that_a_node_has_another_secret(self):
        """The other one cannot tell it, and knows only itself that it is refused."""
        nodes = [self.start("--nnodes", 2, "--node-rank", node, "-n", 1, "--rdzv", f"{HOST}:{self.port}", "--timeout", 8, RANK, "meet", self.done,
                            env=clean_environment(DDP_SECRET=secret)) for node, secret in enumerate((SECRET, SECRET + "?"))]
        for result in map(Result, nodes):
            self.expect(result, 1)
            says = rb"store: 10\.210\.0\.1:\d+ was refused: the other end has another key\. Does it have the same job secret\?\n"
            self.assertEqual(bool(re.search(says, result.err)), b"node 1 has not come" in result.err, str(result))
            self.assertNotIn(SECRET.encode(), result.err)

    def test_node_0_says_that_others_cannot_reach_its_name(self):
        nodes = [self.start("--nnodes", 2, "--node-rank", node, "-n", 1, "--rdzv", f"debian:{self.port}", RANK, "meet", self.done,
                            env=clean_environment(DDP_SECRET=SECRET)) for node in range(2)]
        says = b"ddprun on %s: 'debian' is 127.0.1.1 on this node, where no other node can reach the store: correct /etc/hosts, or add " \
               b"--bind 0.0.0.0 here\n" % os.uname().nodename.encode()
        for result, err in zip(map(Result, nodes), (says, b"")):
            self.expect(result, 0)
            self.assertEqual(result.err, err)

    def test_nodes_with_a_short_secret_are_refused(self):
        for result in map(Result, self.start_nodes(DDP_SECRET="hunter2")):
            self.expect(result, 1)
            self.assertIn(b"16 bytes", result.err)
            self.assertNotIn(b"hunter2", result.err)

    def test_one_node_makes_its_own(self):
        result = Result(start("-n", 2, "--bind", HOST, RANK, "meet", self.done, env=clean_environment()))
        self.expect(result, 0)
        self.assertEqual(sorted(result.out.splitlines()), [b"[0] 0 of 2 has met", b"[1] 1 of 2 has met"])
        self.assertEqual(result.err, b"")


def enter_namespace():
    """Runs this program again where the machine has HOST and HOSTS. Returns why that is impossible."""
    rights = [] if os.getuid() == 0 else ["--map-current-user", "--keep-caps"]
    prefix = ["unshare", "-nm", *rights, "sh", "-c",
              f"ip link set lo up && ip address add {HOST}/32 dev lo && hosts=$(mktemp) && printf '{HOSTS}' > $hosts && "
              "mount --bind $hosts /etc/hosts && rm $hosts && exec \"$@\"", "sh"]
    try:
        tried = subprocess.run([*prefix, "true"], stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as reason:
        return reason
    if tried.returncode != 0:
        return tried.stderr.decode(errors="replace").strip()
    os.execvpe(prefix[0], [*prefix, sys.executable, "-B", *sys.argv], {**os.environ, INSIDE: "1"})


if __name__ == "__main__":
    if INSIDE not in os.environ:
        print("skipped: no namespaces can be made here:", enter_namespace())
        sys.exit(77)
    unittest.main(verbosity=2)
