"""libddp is unloaded before the process exits; a module registers its backend while libddp loads it."""
import os
import subprocess

from jobs import PATIENCE_S, ProcessTest, environment, free_port, main, run_job


class Load(ProcessTest):
    def test_unload(self):
        command = [os.environ["DDP_PROCESS_UNLOAD"], os.environ["DDP_PROCESS_LIBRARY"], str(free_port())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment())
        self.assertEqual((done.returncode, done.stdout), (0, "unloaded\n"), done.stderr)

    def test_module_with_a_constructor(self):
        folder = os.path.dirname(os.environ["DDP_PROCESS_MODULE"])
        self.expect(run_job("tcp", [["available=constructed", "available=nothing"]], env={"DDP_MODULE_PATH": folder}), "available 1",
                    "available 0", "done")


if __name__ == "__main__":
    main()
