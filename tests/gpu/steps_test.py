#!/usr/bin/env python3
"""tools/test-gpu as a script: which steps it runs and with what, where logs go, and what it says at the end. The programs of its
bundle are played here by scripts that print how they were called.

usage: steps_test.py PATH_OF_TEST_GPU
"""
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

TOOL = sys.argv.pop(1)
PROGRAM = """#!/bin/bash
name=${0##*/}
[[ $name != gpu_device_test ]] || echo "on a stub"
[[ $name != gpu_nccl_test || $NCCL_MULTI_RANK_GPU_ENABLE != 1 || $LD_LIBRARY_PATH == *logs/nccl:* ]] || {
    echo "skipped: NCCL is old"
    exit 0
}
[[ $name != gpu_context_test ]] || { echo "pid $$" && sleep "${NAP:-0}"; }
[[ $name != gpu_module_test ]] || exit "${MODULE:-0}"
echo "$name $* shared=$NCCL_MULTI_RANK_GPU_ENABLE libraries=$LD_LIBRARY_PATH"
"""
TORCH = 'import os, sys\nprint(sys.argv[1:], sys.stdin.read().strip(), "libraries", os.environ["LD_LIBRARY_PATH"])\n'
SMI = '#!/bin/bash\n[[ $1 != -L ]] || for ((i = 0; i < ${GPUS:-1}; ++i)); do echo "GPU $i: a stub"; done\n'


class Steps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-steps-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.logs = self.folder / "logs"
        for name in ("gpu_module_test", "gpu_device_test", "gpu_nccl_test", "gpu_context_test", "mnist_cuda", "ddprun",
                     "ddp-bench", "sanitize"):
            self.write(f"bundle/bin/{name}", PROGRAM)
        self.write("bundle/bin/torch_ddp.py", TORCH)
        self.write("path/nvidia-smi", SMI)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def environment(self, **more):
        return {**os.environ, "PATH": f"{self.folder}/path:{os.environ['PATH']}", "LD_LIBRARY_PATH": "/own",
                "DDP_GPU_LOGS": str(self.logs), **more}

    def call(self, *arguments, **environment):
        return subprocess.run([TOOL, *arguments], env=self.environment(**environment), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)

    def run_steps(self, steps, *arguments, **environment):
        return self.call("run", str(self.folder / "bundle"), "--steps", steps, *arguments, **environment)

    def log(self, step):
        return (self.logs / f"{step}.log").read_text()

    def test_lists_names_and_bounds(self):
        rows = [line.split() for line in self.call("--list").stdout.splitlines()]
        bounds = {row[0]: int(row[1]) for row in rows[:-1]}
        self.assertEqual(bounds["module"], 60)
        self.assertEqual(rows[-1], ["at", "most", str(-(-sum(bounds.values()) // 60)), "minutes"])
        some = self.call("--list", "--steps", "mnist-[12]* nccl")
        self.assertEqual([line.split()[0] for line in some.stdout.splitlines()[:-1]],
                         ["nccl", "mnist-1", "mnist-2-shm", "mnist-2-nccl", "mnist-2-nccl-direct"])

    def test_runs_what_is_chosen_and_keeps_all_logs(self):
        job = self.run_steps("mnist-1 mod*")
        self.assertEqual(job.returncode, 0, job.stdout)
        self.assertIn("2 passed, 0 failed, 0 skipped", job.stdout)
        self.assertEqual(self.run_steps("device").returncode, 0)
        self.assertIn("--epochs 2", self.log("mnist-1"))
        with tarfile.open(self.logs / "logs.tgz") as archive:
            self.assertLessEqual({"module.log", "mnist-1.log", "device.log", "summary.txt"}, set(archive.getnames()))

    def test_the_step_of_the_python_package_needs_one_that_fits(self):
        self.assertIn("skipped  python-2-shm: the Python package cannot be imported", self.run_steps("python-2-shm").stdout)
        self.write("bundle/python/ddp/__init__.py", "")
        self.assertIn("passed   python-2-shm", self.run_steps("python-2-shm").stdout)
        self.assertRegex(self.log("python-2-shm"), r"ddprun --no-tag -n 2 python3 .*/bin/python_steps\.py")

    def test_programs_for_libtorch_are_made_there(self):
        self.write("bundle/bin/libtorch_module.py", "import os, sys\nprint(os.environ.get('DDP_TEST_BACKEND'), *sys.argv[1:])\n")
        self.assertIn("3 passed", self.run_steps("libtorch-*", GPUS="2").stdout)
        bundle = self.folder / "bundle"
        for step, backend, ranks in (("libtorch-1-nccl", "nccl", 1), ("libtorch-2-shm", None, 2), ("libtorch-2-nccl", "nccl", 2)):
            self.assertEqual(self.log(step).strip(), f"{backend} {bundle}/sources {bundle}/lib {self.logs} {bundle}/bin/ddprun --no-tag -n {ranks}")

    def play_llm_c(self, ours, theirs):
        """The script with trainers that print these losses."""
        self.write("bundle/bin/llm_c.py", (pathlib.Path(TOOL).resolve().parents[1] / "tests/gpu/llm_c.py").read_text())
        self.write("bundle/bin/ddprun", '#!/bin/bash\nshift 2\nexec "$@"\n')
        for precision in ("f32", "bf16"):
            self.write(f"bundle/bin/gpt2_cuda_{precision}", f"""#!/bin/bash
[[ -s $2 && $# == 6 ]] || exit 3
loss={ours} ms=2.000
[[ $5 == --backend && $6 == nccl ]] || {{ [[ $5 == --nccl && -d $6 && -z $(ls "$6") ]] && loss={theirs} ms=4.000; }} || exit 4
for ((i = 0; i < $4; ++i)); do echo "step $i: loss $loss, norm 1.0000, $ms ms"; done
echo "gradients by somebody: median $ms ms"
""")
        return self.run_steps("llm-c-1")

    def test_llm_c_is_compared(self):
        self.write("bundle/bin/llm_c.py", (pathlib.Path(TOOL).resolve().parents[1] / "tests/gpu/llm_c.py").read_text())
        self.assertIn("skipped  llm-c-1: built without llm.c", self.run_steps("llm-c-1").stdout)
        job = self.play_llm_c("10.8250", "10.8254")
        self.assertIn("1 passed", job.stdout)
        self.assertRegex(job.stdout, r"f32 ranks 1 model d12: loss 10.8254 .* apart 0.0004 .* step 2.000 ms by libddp, 4.000 ms by llm.c, 0.500")
        for wrong in ("10.8", "nan"):
            self.assertIn("1 failed", self.play_llm_c(wrong, "10.8254").stdout)

    def test_java_and_julia_are_tested_where_they_are(self):
        job = self.run_steps("java-2-shm julia-2-shm")
        self.assertIn("skipped  java-2-shm: built without Java", job.stdout)
        self.assertIn("skipped  julia-2-shm: built without Julia", job.stdout)
        self.write("bundle/bindings/ddp_java_tests.jar", "")
        self.write("bundle/bindings/DDP/Project.toml", "")
        for language in ("java", "julia"):
            self.write(f"path/{language}", "#!/bin/bash\n")
        self.assertIn("2 passed", self.run_steps("java-2-shm julia-2-shm").stdout)
        self.assertRegex(self.log("java-2-shm"), r"-n 2 java -Dorg\.libddp\.test\.device=.*/bindings/.* -c org\.libddp\.DeviceTest")
        self.assertRegex(self.log("julia-2-shm"), r"-n 2 julia .*/bindings/device_test\.jl .*/bindings/libddp_gpu_test_device\.so")

    def test_environment_chooses_too(self):
        job = self.call("run", str(self.folder / "bundle"), DDP_GPU_STEPS="device")
        self.assertIn("1 passed", job.stdout)

    def test_a_pattern_that_matches_nothing_is_an_error_after_the_others(self):
        job = self.run_steps("device trasnfer*")
        self.assertEqual(job.returncode, 1)
        self.assertIn("passed   device", job.stdout)
        self.assertRegex(job.stdout, r"no step is called trasnfer\*\. There are: module device .*transfer-resnet50")
        self.assertEqual(self.call("--list", "--steps", "trasnfer*").returncode, 1)

    def test_a_failure_is_told(self):
        job = self.run_steps("module device", MODULE="7")
        self.assertEqual(job.returncode, 1)
        self.assertIn("FAILED   module: status 7", job.stdout)
        self.assertIn("1 passed, 1 failed (module)", job.stdout)

    def test_ends_in_time(self):
        before = time.monotonic()
        job = self.run_steps("context nccl device", "--within", "19", NAP="30")
        self.assertLess(time.monotonic() - before, 19)
        self.assertEqual(job.returncode, 1)
        self.assertRegex(job.stdout, "FAILED   context: status 124 after . s, all that --within left")
        self.assertIn("skipped  nccl: no time is left", job.stdout)
        self.assertTrue((self.logs / "logs.tgz").exists())

    def test_leaves_logs_and_no_process_when_it_is_ended(self):
        with subprocess.Popen([TOOL, "run", str(self.folder / "bundle"), "--steps", "context"],
                              env=self.environment(NAP="30"), stdout=subprocess.DEVNULL) as job:
            until = time.monotonic() + 20
            while not (self.logs / "context.log").exists() or "\n" not in self.log("context"):
                self.assertLess(time.monotonic(), until)
                time.sleep(0.05)
            pid = self.log("context").split()[1]
            _, start = self.state(pid)
            job.terminate()
            self.assertNotEqual(job.wait(10), 0)
        self.assertTrue((self.logs / "logs.tgz").exists())
        until = time.monotonic() + 10
        # Another process may get the number. An orphan is gone when somebody has taken notice of its end.
        while (process := self.state(pid))[1] == start:
            self.assertLess(time.monotonic(), until, f"process {pid}: {process}")
            time.sleep(0.05)

    @staticmethod
    def state(pid):
        """The state of a process, such as S, and when it started; None and None if there is none."""
        try:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None, None
        return fields[0], fields[19]

    def test_two_ranks_share_a_gpu_where_nccl_allows_it(self):
        job = self.run_steps("nccl-two-ranks mnist-2-nccl-direct trace-nccl")
        self.assertIn("skipped  nccl-two-ranks: NCCL is old", job.stdout)
        self.assertIn("skipped  mnist-2-nccl-direct: NCCL is old", job.stdout)
        self.assertIn("skipped  trace-nccl: two GPUs are needed", job.stdout)
        self.write("libnccl.so.2.30.1", "")
        job = self.run_steps("nccl-two-ranks mnist-2-nccl-direct", DDP_GPU_NCCL=str(self.folder / "libnccl.so.2.30.1"))
        self.assertIn("2 passed", job.stdout)
        self.assertIn("shared=1", self.log("mnist-2-nccl-direct"))
        self.assertIn("--backend nccl --backend-options algorithm=direct", self.log("mnist-2-nccl-direct"))
        self.assertEqual(os.readlink(self.logs / "nccl/libnccl.so.2"), str(self.folder / "libnccl.so.2.30.1"))
        self.assertEqual(self.run_steps("device", DDP_GPU_NCCL="/nowhere/libnccl.so.2").returncode, 2)

    def test_two_ranks_have_gpus_of_their_own_where_there_are_two(self):
        job = self.run_steps("nccl-two-ranks trace-nccl", GPUS="2", NCCL_MULTI_RANK_GPU_ENABLE="0")
        self.assertIn("2 passed", job.stdout)
        self.assertIn("shared=0", self.log("nccl-two-ranks"))

    def test_pytorch_has_its_own_libraries(self):
        self.assertEqual(self.run_steps("torch-view-resnet50").returncode, 0)
        said = self.log("torch-view-resnet50")
        self.assertIn("['resnet50', '--view', '--powersgd', '4'] ddp-bench models --model resnet50", said)
        self.assertTrue(said.endswith("libraries /own\n"), said)
        self.assertIn(f"libraries={self.folder}/bundle/lib:/own", said)

    def test_nothing_but_the_module_without_a_gpu(self):
        self.write("bundle/bin/gpu_device_test", '#!/bin/bash\necho "skipped: no driver"\n')
        job = self.run_steps("module context")
        self.assertEqual(job.returncode, 1)
        self.assertIn("passed   module", job.stdout)
        self.assertIn("skipped: no driver", job.stdout)
        self.assertFalse((self.logs / "context.log").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
