#!/usr/bin/env python3
"""tools/test as a script: what it passes to ctest, the loops that run meanwhile, and when it stops. The programs that it calls are stubs.

usage: test_command.py TOOLS/TEST
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(sys.argv[1])
# Says how it was called, waits until so many processes of the script's have computed, and fails as often as the test wants.
CTEST = """#!/bin/bash
called="$*"
echo "${called%% --test-output-size-passed*}" >> called  # the rest is about the output
cat /proc/$PPID/task/*/children >> children
for ((look = 0; look < 200; ++look)); do
    computed=0
    for child in $(cat children); do
        read -ra stat < /proc/$child/stat && ((stat[13] > 0)) && computed=$((computed + 1))
    done 2> /dev/null
    ((computed < $(cat loops))) || break
    sleep 0.1
done
echo "$computed" >> computed
echo "100% tests passed, $(cat failures) tests failed out of 3"
"""


class TestCommand(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, text in (("tools/setup", "#!/bin/sh\n"), ("tools/build", "#!/bin/sh\nmkdir -p build/$1\necho \"$*\" >> built\n"),
                           ("bin/ctest", CTEST)):
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        for name in ("test", "rooms.py", "skips.py"):
            shutil.copy(SCRIPT.parent / name, self.folder / "tools" / name)
        (self.folder / "failures").write_text("0")
        (self.folder / "loops").write_text("0")

    def run_it(self, *args):
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        return subprocess.run([self.folder / "tools/test", *args], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, env=environment, timeout=120)

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def test_all_builds(self):
        done = self.run_it("--all")
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(self.lines("called"), ["--preset release", "--preset asan", "--preset tsan"])
        self.assertTrue(done.stdout.endswith("100% tests passed, 0 tests failed out of 9\n"), done.stdout)

    def test_without_arguments(self):
        done = self.run_it()
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(self.lines("called"), ["--preset release --label-exclude ^all$"])
        self.assertTrue(done.stdout.endswith("builds: release\n100% tests passed, 0 tests failed out of 3\n"), done.stdout)

    def test_says_what_was_skipped(self):
        (self.folder / "bin/ctest").write_text("""#!/bin/bash
while [[ $1 != --output-junit ]]; do shift; done
cat > $2 << END
<testsuite>
<testcase name="one"><skipped/><system-out>x\nskipped: no reason\ny</system-out></testcase>
<testcase name="two"><system-out>[ RUN      ] A.B\nb.cc:1: Skipped\nno &lt;ranks&gt;\n[  SKIPPED ] A.B (0 ms)\n</system-out></testcase>
<testcase name="three"><system-out>test_x (a.b) ... skipped 'nothing here'\nOK (skipped=1)\n</system-out></testcase>
<testcase name="four"><system-out>fine</system-out></testcase>
</testsuite>
END
echo "100% tests passed, 0 tests failed out of 4"
""")
        done = self.run_it()
        self.assertTrue(done.stdout.endswith("""
skipped: 1 of 4 tests, and 2 parts of others
  no <ranks>: two: A.B
  no reason: one
  nothing here: three: test_x
builds: release
100% tests passed, 0 tests failed out of 4
"""), done.stdout)

    def test_rooms_of_a_change(self):
        def git(*args):
            subprocess.run(["git", "-C", self.folder, "-c", "user.name=x", "-c", "user.email=x@x", *args], check=True, capture_output=True)

        for path in ("lib/rendezvous/a.cc", "tests/unit/rendezvous/CMakeLists.txt", "tests/unit/wire/CMakeLists.txt",
                     "tests/dist/failure/CMakeLists.txt", "tests/dist/process/CMakeLists.txt"):
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).touch()
        (self.folder / ".gitignore").write_text("build/\nbuilt\ncalled\nchildren\ncomputed\nbin/\n")
        git("init")
        git("add", ".")
        git("commit", "-m", "first")
        done = self.run_it("--changed")
        self.assertEqual((done.returncode, done.stderr), (1, "tools/test: nothing has changed since HEAD\n"))
        (self.folder / "lib/rendezvous/a.cc").write_text("x")
        (self.folder / "tests/unit/wire/new.cc").touch()
        self.assertEqual(self.run_it("--changed").returncode, 0)
        self.assertEqual(self.lines("called"), ["--preset release --label-regex ^(failure|process|rendezvous|wire)$"])
        git("add", ".")
        git("commit", "-m", "second")
        self.run_it("--changed", "HEAD~1", "--repeat", "3")
        self.assertIn("(failure|process|rendezvous|wire)", self.lines("called")[-1])
        (self.folder / "CMakeLists.txt").touch()  # everything
        self.run_it("--changed")
        self.assertEqual(self.lines("called")[-1], "--preset release --label-exclude ^all$")
        self.assertEqual(self.run_it("--changed", "nowhere").returncode, 2)

    def test_the_rooms_of_paths_exist(self):
        root = SCRIPT.resolve().parent.parent
        table = subprocess.run([sys.executable, "-B", root / "tools/rooms.py", "--table"], check=True, capture_output=True, text=True).stdout
        patterns, rooms = [], set()
        for line in table.splitlines():
            pattern, *named = line.split()
            patterns.append(pattern)
            rooms.update(named)
        for room in rooms - {"everything", "{1}", "{2}"}:
            self.assertTrue(list(root.glob(f"tests/{room}")) + list(root.glob(f"tests/*/{room}")), room)
        for room in (root / "lib").iterdir():
            if room.is_dir():
                self.assertTrue(any(pattern.startswith(f"lib/{room.name}/") for pattern in patterns), room)

    def test_repeat(self):
        done = self.run_it("--repeat", "50", "^java")
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(self.lines("called"),
                         ["--preset release --label-exclude ^all$ --tests-regex ^java --repeat until-fail:50 --stop-on-failure"])
        self.assertIn("each test up to 50 times, beside 0 busy loops\n", done.stdout)

    def test_repeat_stops_at_the_first_failure(self):
        (self.folder / "failures").write_text("1")
        done = self.run_it("--repeat", "2")
        self.assertEqual(done.returncode, 1, done)
        self.assertEqual(len(self.lines("called")), 1)
        self.assertIn("builds: release\n", done.stdout)
        self.assertIn("66% tests passed, 1 tests failed out of 3\n", done.stdout)

    def test_the_build_of_the_next_preset_ends_with_it(self):
        (self.folder / "failures").write_text("1")
        (self.folder / "tools/build").write_text("""#!/bin/bash
mkdir -p build/$1
[[ $1 != release ]] || exit 0
trap 'sleep 0.5; echo end >> ended; exit 1' TERM
echo begin >> begun
while :; do sleep 0.05; done
""")
        for _ in range(3):  # stopped at once, also before it has begun
            self.assertEqual(self.run_it("--all", "--repeat", "2").returncode, 1)
            self.assertEqual(len(self.lines("ended")), len(self.lines("begun")))
        (self.folder / "bin/ctest").write_text("#!/bin/bash\nwhile [[ ! -e begun ]]; do sleep 0.05; done\n")
        self.assertEqual(self.run_it("--all").returncode, 1)
        self.assertEqual(len(self.lines("ended")), len(self.lines("begun")))
        self.assertGreaterEqual(len(self.lines("begun")), 1)

    def test_rooms(self):
        for folder in ("unit", "unit/rendezvous", "dist/failure", "bindings/python", "support"):
            path = self.folder / "tests" / folder
            path.mkdir(parents=True)
            (path / "CMakeLists.txt").touch()
        # Not a new system, where a first build begins while packages are installed, and may be ended before it says so.
        (self.folder / "build/release").mkdir(parents=True)
        (self.folder / "build/release/CMakeCache.txt").touch()
        done = self.run_it("rendezvous", "failure", "--repeat", "2", "store")
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(self.lines("built"), ["release --target tests/unit/rendezvous/all --target tests/dist/failure/all"])
        self.assertEqual(self.lines("called"), ["--preset release --label-regex ^(rendezvous|failure)$ --tests-regex store"
                                                " --repeat until-fail:2 --stop-on-failure"])
        self.assertIn("builds: release\nrooms: rendezvous failure\n", done.stdout)
        self.run_it("unit")
        self.assertEqual(self.lines("built")[-1], "release --target tests/unit/all")
        self.run_it("python", "unit")  # Python's tests need the whole build
        self.assertEqual(self.lines("built")[-1], "release")
        self.assertEqual(self.lines("called")[-1], "--preset release --label-regex ^(python|unit)$")
        for room in ("support", "nowhere", "unit/rendezvous", ""):
            done = self.run_it(room)
            self.assertEqual((done.returncode, len(self.lines("called"))), (2, 3), room)

    def test_busy_loops_run_and_end(self):
        (self.folder / "loops").write_text("2")
        for failures in ("0", "1"):
            (self.folder / "failures").write_text(failures)
            self.run_it("--repeat", "3", "--busy", "2")
            self.assertGreaterEqual(int(self.lines("computed")[-1]), 2)
            children = " ".join(self.lines("children")).split()
            self.assertGreaterEqual(len(children), 2)
            end = time.monotonic() + 20
            while left := [child for child in children if os.path.exists(f"/proc/{child}")]:
                self.assertLess(time.monotonic(), end, left)
                time.sleep(0.05)

    def test_usage(self):
        for args in (["--repeat"], ["--repeat", "0"], ["--repeat", "x"], ["--busy"], ["--busy", "-1"], ["more"], ["--all", "unit"], ["--quick"]):
            done = self.run_it(*args)
            self.assertEqual((done.returncode, self.lines("called")), (2, []), args)
            self.assertIn("usage: tools/test", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
