"""ddprun's command line, and what ranks find in their environment."""
import os
import re
import pathlib
import socket
import subprocess
import unittest

from ddprun_support import PYTHON, RANK, Case, free_port, run

MANY_PROCESSORS = os.environ["DDPRUN_TEST_MANY_PROCESSORS"]  # many_processors.c, or "" in a build that cannot load it
needs_many_processors = unittest.skipUnless(MANY_PROCESSORS, "sanitizers")


class UsageTest(Case):
    def expect_refusal(self, words, *args):
        result = run(*args)
        self.expect(result, 2)
        self.assertEqual(result.out, b"")
        self.assertIn(words.encode(), result.err)

    def completed(self, *words):
        """The words that bash offers for the last one."""
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ddprun; '
                  'for reply in "${COMPREPLY[@]}"; do echo "$reply"; done')
        source = pathlib.Path(__file__).resolve().parents[3] / "tools/run/completion.bash"
        return subprocess.run(["bash", "-c", script, "bash", source, os.environ["DDPRUN"], *words], check=True, timeout=30,
                              stdout=subprocess.PIPE, text=True).stdout.splitlines()

    def test_completion(self):
        self.assertEqual(self.completed("--gr"), ["--grace"])
        self.assertEqual(self.completed("-n", "2", "--env", "A=1", "--no-tag", "--dr"), ["--dry-run"])
        self.assertEqual(self.completed("--place", "nu"), ["numa"])
        self.assertEqual(self.completed("-n", "2", "python3", "--gr"), [])  # of the program
        self.write("trainer", "")
        self.assertEqual(self.completed("-n", "2", "python3", self.path("trai")), [self.path("trainer")])
        self.assertIn("bash", self.completed("-n", "2", "bas"))
        self.assertEqual(self.completed("--metrics", "127.0.0.1:0", "--dr"), ["--dry-run"])
        os.mkdir(self.path("kept"))
        self.assertEqual(self.completed("--status", self.path("ke")), [self.path("kept")])
        self.assertEqual(self.completed("--record", self.path("ke")), [self.path("kept")])

    def test_bad_options(self):
        self.expect_refusal("-n:", "-n", "0", "true")
        self.expect_refusal("-n:", "-n", "-1", "true")
        self.expect_refusal("-n:", "-n", "5000", "true")
        self.expect_refusal("-n:", "-n", "2x", "true")
        self.expect_refusal("-n", "-n")
        self.expect_refusal("--nproc-per-node:", "--nproc_per_node=0", "true")
        self.expect_refusal("no program", "-n", "2")
        self.expect_refusal("no program", "-n", "2", "--")
        self.expect_refusal("--bogus", "--bogus", "true")
        self.expect_refusal("--node-rank", "--nnodes", "2", "--node-rank", "2", "--rdzv", "h:1", "true")
        self.expect_refusal("--node-rank", "--node-rank", "-1", "true")
        self.expect_refusal("--nnodes", "--nnodes", "0", "true")
        self.expect_refusal("--rdzv", "--nnodes", "2", "true")
        for endpoint in ("host", "host:", ":1", "host:0", "host:65536", "host:1x", "a:b:1", "[::1]", "tcp://h:1"):
            self.expect_refusal("--rdzv", "--nnodes", "2", "--rdzv", endpoint, "true")
        self.expect_refusal("--grace", "--grace", "-1", "true")
        self.expect_refusal("--report-time", "--report-time", "-1", "true")
        self.expect_refusal("--place", "--place", "sockets", "true")
        for timeout in ("0", "-1", "soon"):
            self.expect_refusal("--timeout", "--timeout", timeout, "true")
        self.expect_refusal("--node-timeout", "--node-timeout", "0.9", "true")
        for option in ("--grace", "--report-time", "--timeout", "--node-timeout"):
            self.expect_refusal(option, option, "nan", "true")
        self.expect_refusal("--max-restarts", "--max-restarts", "-1", "true")
        self.expect_refusal("--env", "--env", "novalue", "true")
        self.expect_refusal("--env", "--env", "DDP_RANK=1", "true")
        self.expect_refusal("--no-tag", "--no-tag", "--timestamps", "true")

    def test_options_of_others_and_misspelt_ones(self):
        for words, says in ((("-np", 2, "true"), b"-np is an option of mpirun; ddprun has -n\n"),
                            (("--nnode", 2, "true"), b"unknown option --nnode; did you mean --nnodes?\n"),
                            (("--max-restart=2", "true"), b"unknown option --max-restart=2; did you mean --max-restarts?\n"),
                            (("--nothing-like-it", "true"), b"unknown option --nothing-like-it\n")):
            result = run(*words)
            self.expect(result, 2)
            self.assertIn(says, result.err)

    def test_several_nodes_need_a_secret(self):
        env = {name: value for name, value in os.environ.items() if not name.startswith("DDP_SECRET")}
        for variables in ({}, {"DDP_SECRET": "", "DDP_SECRET_FILE": ""}, {"DDP_INSECURE": "1"}):
            result = run("--nnodes", 2, "--rdzv", "127.0.0.1:1", "true", env={**env, **variables})
            self.expect(result, 2)
            for words in (b"--secret-file", b"DDP_SECRET_FILE", b"head -c 32 /dev/urandom"):
                self.assertIn(words, result.err)
        result = run("--nnodes", 2, "--rdzv", "127.0.0.1:1", "true", env={**env, "DDP_SECRET_FILE": self.path("none")})
        self.expect(result, 1)
        self.assertIn(b"DDP_SECRET_FILE: cannot read " + self.path("none").encode(), result.err)

    def test_secret_files(self):
        self.assertIn(b"--secret-file", run("--secret-file", self.path("none"), "true").err)
        self.assertIn(b"empty", run("--secret-file", self.write("empty", " \n"), "true").err)
        result = run("--secret-file", self.write("open", "0123456789abcdef\n", 0o644), "true")
        self.expect(result, 1)
        self.assertIn(b"chmod", result.err)
        good = self.write("good", "0123456789abcdef\n")
        for options, variables in ((("--secret-file", good), {"DDP_SECRET": "another one, of the user"}),
                                   (("--secret-file", os.path.relpath(good)), {}),
                                   (("--rdzv", "127.0.0.1:0", "--min-ranks", 1), {"DDP_SECRET_FILE": good})):
            if "127.0.0.1:0" in options:
                options = tuple(f"127.0.0.1:{free_port()}" if each == "127.0.0.1:0" else each for each in options)
            result = run(*options, "sh", "-c", "cd /; cat $DDP_SECRET_FILE; tr '\\0' '\\n' < /proc/self/environ | grep -c 0123456789abcdef; env | grep DDP_SECRET=",
                         env={**os.environ, **variables})
            # Where other ddpruns may come, the tag names the host.
            self.assertEqual(re.sub(rb"(?m)^\[\S+ 0\]", b"[0]", result.out), b"[0] 0123456789abcdef\n[0] 0\n[0] DDP_SECRET=\n", str(result))

    def test_missing_program(self):
        for name in ("no-such-program-here", "./no-such-program-here"):
            result = run("-n", 4, name)
            self.expect(result, 127)
            self.assertEqual(result.err.count(b"\n"), 1, str(result))
            self.assertIn(name.encode(), result.err)

    def test_program_that_may_not_run(self):
        for path in (self.folder, self.write("plain", "text")):
            result = run("-n", 4, path)
            self.expect(result, 126)
            self.assertEqual(result.err.count(b"\n"), 1, str(result))

    def test_options_after_the_program_are_its_own(self):
        for separator in ([], ["--"]):
            result = run("-n", 1, *separator, "echo", "-n", "-h", "--version", "--", "x")
            self.assertEqual(result.out, b"[0] -h --version -- x\n")

    def test_help_and_version(self):
        result = run("--help")
        self.expect(result, 0)
        self.assertIn(b"Usage: ddprun [OPTIONS] PROGRAM [ARGUMENTS...]\n", result.out)
        self.assertIn(b"--max-restarts", result.out)
        result = run("--version")
        self.expect(result, 0)
        self.assertRegex(result.out, rb"^ddprun \d+\.\d+\.\d+\n$")

    def test_port_that_is_taken(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            result = run("--rdzv", "127.0.0.1:%d" % holder.getsockname()[1], "true")
        self.expect(result, 1)
        self.assertIn(b"cannot host the store", result.err)

    def test_address_that_is_not_here(self):
        result = run("--bind", "192.0.2.1", "true")
        self.expect(result, 1)
        self.assertIn(b"192.0.2.1", result.err)


def usable_processors():
    """As ddprun counts them; tests of this file say with which."""
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    line = run("--dry-run", "-n", 1, "true", env=env).out.decode()
    return int(line.split("OMP_NUM_THREADS=")[1].split()[0])


class QuotaGroup:
    """A control group with a quota of processor time. None is made where this machine does not let a test."""

    def __init__(self, quota_us, period_us):
        self.folder = None
        for home in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"):
            folder = f"{home}/ddp-test-{os.getpid()}"
            limits = {"cpu.max": f"{quota_us} {period_us}"} if home == "/sys/fs/cgroup" else \
                {"cpu.cfs_period_us": period_us, "cpu.cfs_quota_us": quota_us}
            try:
                os.mkdir(folder)
            except OSError:
                continue
            self.folder = folder
            try:
                for name, value in limits.items():
                    with open(f"{folder}/{name}", "w") as file:
                        file.write(str(value))
                return
            except OSError:
                self.close()

    def enter(self):
        """For the child process that becomes ddprun."""
        with open(f"{self.folder}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    def close(self):
        os.rmdir(self.folder)
        self.folder = None


class EnvironmentTest(Case):
    def environments(self, *args, env=None):
        result = run(*args, "sh", "-c", f"cat /proc/self/environ > {self.path('env')}$DDP_RANK", env=env)
        self.expect(result, 0)
        found = []
        for rank in range(args[1]):
            entries = self.read(f"env{rank}").decode().split("\0")
            found.append(dict(entry.split("=", 1) for entry in entries if entry))
        return found

    def test_contents(self):
        env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        env["RANK"] = "77"
        found = self.environments("-n", 4, "--env", "A=1=2", "--env", "B=", env=env)
        for rank, variables in enumerate(found):
            for name in ("DDP_RANK", "DDP_LOCAL_RANK", "RANK", "LOCAL_RANK"):
                self.assertEqual(variables[name], str(rank))
            for name in ("DDP_WORLD_SIZE", "DDP_LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
                self.assertEqual(variables[name], "4")
            self.assertRegex(variables["DDP_STORE"], r"^tcp://127\.0\.0\.1:\d+$")
            self.assertEqual(variables["DDP_STORE_HOSTED"], "launcher")
            self.assertEqual(variables["DDP_RESTART"], "0")
            self.assertRegex(variables["DDP_SECRET"], r"^[0-9a-f]{64}$")
            self.assertEqual((variables["A"], variables["B"]), ("1=2", ""))
            self.assertEqual(variables["OMP_NUM_THREADS"], str(max(1, usable_processors() // 4)))
            self.assertEqual(variables["PATH"], os.environ["PATH"])
        self.assertEqual(len({variables["DDP_SECRET"] for variables in found}), 1)

    def test_dry_run(self):
        """It shows what ranks would find, and starts nothing."""
        env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        job = ("--nnodes", 2, "--node-rank", 1, "-n", 2, "--rdzv", "host0:29500", "--env", "A=1 2", "--secret-file",
               self.write("secret", "0123456789abcdef\n"))
        result = run("--dry-run", *job, "touch", self.path("made"), "it's", env=env)
        self.expect(result, 0)
        lines = result.out.decode().splitlines()
        self.assertEqual([line[:4] for line in lines], ["[2] ", "[3] "])
        for rank, line in zip((2, 3), lines):
            for words in (f"DDP_RANK={rank} ", "DDP_WORLD_SIZE=4 ", "DDP_STORE=tcp://host0:29500 ", " A='1 2' ", " OMP_NUM_THREADS=",
                          f" touch {self.path('made')} 'it'\\''s'"):
                self.assertIn(words, line)
            self.assertNotIn("0123456789abcdef", line)
        self.assertFalse(os.path.exists(self.path("made")))
        # A shell takes the line.
        shown = run("--dry-run", "-n", 1, "sh", "-c", "echo $DDP_WORLD_SIZE", env=env).out.decode()
        self.assertEqual(subprocess.check_output(["sh", "-c", shown[len("[0] "):]], timeout=20), b"1\n")

    def test_names_of_torchrun(self):
        for count in ("--nproc-per-node=2", "--nproc_per_node=2"):
            self.assertEqual(run(count, "--max_restarts=0", "--node_rank=0", "--log_dir", self.path("logs"), "echo").out.count(b"\n"), 2)
        shown = run("--dry-run", "--nnodes=2", "--rdzv-endpoint=h:1", "--secret-file", self.write("key", "0123456789abcdef\n"), "true")
        self.assertIn(b"DDP_STORE=tcp://h:1 ", shown.out)

    def test_omp_threads_are_left_alone(self):
        found = self.environments("-n", 2, env={**os.environ, "OMP_NUM_THREADS": "3"})
        self.assertEqual([variables["OMP_NUM_THREADS"] for variables in found], ["3", "3"])

    def test_number_of_recorded_events_is_left_alone(self):
        trace = ("-n", 2, "--trace", self.path("trace.json"))
        own = {name: value for name, value in os.environ.items() if name != "DDP_RECORD_EVENTS"}
        for options, env, wanted in (([], {}, "262144"), ([], {"DDP_RECORD_EVENTS": "128"}, "128"),
                                     (["--env", "DDP_RECORD_EVENTS=64"], {"DDP_RECORD_EVENTS": "128"}, "64")):
            found = self.environments(*trace, *options, env={**own, **env})
            self.assertEqual([variables["DDP_RECORD_EVENTS"] for variables in found], [wanted] * 2)

    def test_records_that_memory_has_no_room_for(self):
        many = {"DDP_RECORD_EVENTS": str(1 << 26), "TMPDIR": self.folder}  # 4 GiB for each rank
        found = self.environments("-n", 64, env={**os.environ, **many})
        for variables in found:
            self.assertTrue(variables["DDP_RECORD"].startswith(self.folder), variables["DDP_RECORD"])

    def test_timeout(self):
        [variables] = self.environments("-n", 1, "--timeout", "2.5", "--env", "DDP_TIMEOUT_MS=1")
        self.assertEqual(variables["DDP_TIMEOUT_MS"], "2500")
        [variables] = self.environments("-n", 1, env={**os.environ, "DDP_TIMEOUT_MS": "7"})
        self.assertEqual(variables["DDP_TIMEOUT_MS"], "7")

    def test_timeout_of_groups(self):
        alone = "test $DDP_RANK = 1 && exec sleep 60; exec \"$0\" 9 0"
        result = run("-n", 2, "--timeout", 0.7, "sh", "-c", alone, RANK)
        self.expect(result, 3)
        self.assertIn(b"within 700 ms: rank 1", result.err)

    def test_timeout_that_is_none(self):
        for bad in ("0", "-5", "1.5", "5s"):
            result = run("-n", 1, RANK, 9, 0, env={**os.environ, "DDP_TIMEOUT_MS": bad})
            self.expect(result, 3)
            self.assertIn(b"DDP_TIMEOUT_MS: ", result.err)
            self.assertIn(bad.encode(), result.err)

    PLACE = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"

    def places(self, ranks, *options, processors=None, **env):
        env = {name: value for name, value in {**os.environ, **env}.items() if name != "OMP_NUM_THREADS"}
        result = run("-n", ranks, *options, PYTHON, "-c", self.PLACE, env=env,
                     preexec_fn=lambda: processors and os.sched_setaffinity(0, processors))
        self.expect(result, 0)
        return sorted(result.out.decode().splitlines()), result.err

    def test_place_of_ranks(self):
        own = sorted(os.sched_getaffinity(0))
        for options in ((), ("--place", "none"), ("--place", "numa")):
            self.assertEqual(self.places(1, *options), ([f"[0] {own} {usable_processors()}"], b""))

    def test_place_is_within_what_ddprun_has(self):
        one = min(os.sched_getaffinity(0))
        for how in ("none", "numa", "cores"):
            lines, err = self.places(2, "--place", how, processors={one})
            self.assertEqual(lines, [f"[{rank}] [{one}] 1" for rank in range(2)])
            self.assertEqual(b"ranks are not placed: too few cores (1) for 2 ranks" in err, how == "cores")

    @unittest.skipUnless({0, 1} <= os.sched_getaffinity(0), "needs processors 0 and 1")
    def test_place_on_nodes(self):
        # hwloc takes processors 0 and 1 for two nodes; the ranks are bound in earnest.
        made_up = {"HWLOC_SYNTHETIC": "numa:2 core:1 pu:1", "HWLOC_THISSYSTEM": "1"}
        self.assertEqual(self.places(2, "--place", "numa", **made_up), (["[0] [0] 1", "[1] [1] 1"], b""))
        self.assertEqual(self.places(4, "--place", "numa", **made_up),
                         (["[0] [0] 1", "[1] [0] 1", "[2] [1] 1", "[3] [1] 1"], b""))
        self.assertEqual(self.places(1, "--place", "numa", **made_up), (["[0] [0, 1] 2"], b""))
        self.assertEqual(self.places(1, "--place", "cores", **made_up), (["[0] [0, 1] 2"], b""))
        lines, err = self.places(3, "--place", "numa", **made_up)
        own = sorted(os.sched_getaffinity(0))
        self.assertEqual(lines, [f"[{rank}] {own} {max(1, usable_processors() // 3)}" for rank in range(3)])
        self.assertEqual(err, b"ddprun: ranks are not placed: 3 ranks cannot be divided evenly among 2 NUMA nodes\n")

    @needs_many_processors
    def test_a_quota_bounds_the_threads_of_ranks(self):
        group = QuotaGroup(150_000, 100_000)
        if not group.folder:
            self.skipTest("this machine lets the test make no control group with a quota")
        self.addCleanup(group.close)

        def threads(ranks, *options, **env):
            env = {name: value for name, value in {**os.environ, **env}.items() if name != "OMP_NUM_THREADS"}
            result = run("-n", ranks, "--no-tag", *options, "sh", "-c", "echo $OMP_NUM_THREADS", env=env, preexec_fn=group.enter)
            self.expect(result, 0)
            return result.out.decode().split()

        many = {"LD_PRELOAD": MANY_PROCESSORS}
        self.assertEqual(threads(1, **many), ["2"])
        self.assertEqual(threads(2, **many), ["1", "1"])
        # Placed on all 8 processors of a machine, of which the quota pays for two.
        made_up = {"HWLOC_SYNTHETIC": "numa:1 core:8 pu:1", "HWLOC_THISSYSTEM": "0"}
        self.assertEqual(threads(1, "--place", "cores", **many, **made_up), ["2"])

    @needs_many_processors
    def test_more_than_1024_processors(self):
        if usable_processors() < len(os.sched_getaffinity(0)):
            self.skipTest("the processors of this test have a quota")
        env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        [variables] = self.environments("-n", 1, env={**env, "LD_PRELOAD": MANY_PROCESSORS})
        self.assertEqual(variables["OMP_NUM_THREADS"], "2000")

    def test_bind(self):
        [variables] = self.environments("-n", 1, "--bind", "0.0.0.0")
        self.assertRegex(variables["DDP_STORE"], r"^tcp://127\.0\.0\.1:\d+$")

    def test_secrets_differ_between_jobs(self):
        secrets = {self.environments("-n", 1)[0]["DDP_SECRET"] for _ in range(3)}
        self.assertEqual(len(secrets), 3)

    def test_secret_is_in_no_command_line_and_no_output(self):
        code = "import glob, os, sys\n" \
               "secret = os.environ['DDP_SECRET'].encode()\n" \
               "def text(path):\n" \
               "    try: return open(path, 'rb').read()\n" \
               "    except OSError: return b''\n" \
               "paths = glob.glob('/proc/[0-9]*/cmdline')\n" \
               "print('seen', sum(secret in text(path) for path in paths), 'in some', len(paths) > 2)\n" \
               f"open({self.path('secret')!r}, 'wb').write(secret)\n"
        result = run("-n", 1, PYTHON, "-c", code, env={**os.environ, "DDP_LOG_LEVEL": "debug"})
        self.expect(result, 0)
        self.assertEqual(result.out, b"[0] seen 0 in some True\n")
        self.assertNotIn(self.read("secret"), result.err)

    def test_descriptors_do_not_leak(self):
        result = run("-n", 2, "sh", "-c", "exec ls /proc/self/fd")
        self.assertEqual(sorted(result.out.split()), sorted([b"[0]", b"[1]"] * 4 + [b"0", b"1", b"2", b"3"] * 2))

    def test_limit_of_open_files_is_as_before(self):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        result = run("-n", 1, "sh", "-c", "ulimit -n",
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard)))
        self.assertEqual(result.out, b"[0] 200\n")

    def test_many_ranks(self):
        result = run("-n", 200, "sh", "-c", "echo $DDP_RANK")
        self.expect(result, 0)
        self.assertEqual(sorted(result.out.splitlines()), sorted(b"[%d] %d" % (r, r) for r in range(200)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
