"""libddp is unloaded before the process exits; a module registers its backend while libddp loads it."""
import os
import pathlib
import shutil
import subprocess
import tempfile

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

    def test_a_constructor_finds_another_file(self):
        """Root looks at each file that it loads, and remembers it. No lock may be held while the file is loaded."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.environ["DDP_PROCESS_MODULE"], folder)
            pathlib.Path(folder, "libddp-other.so").write_text("no module")
            self.expect(run_job("tcp", [["available=constructed", "available=other"]], env={"DDP_MODULE_PATH": folder}), "available 1",
                        "available 0", "done")

    def test_a_module_deletes_what_it_has_put_into_the_store(self):
        folder = os.path.dirname(os.environ["DDP_PROCESS_MODULE"])
        for status, said in run_job("constructed", [["join"], ["join"]], env={"DDP_MODULE_PATH": folder}):
            self.assertEqual(status, 3, said)
            self.assertIn("backend constructed, connecting: set 0, found 0 1, deleted 0 0, gone 1", said)


if __name__ == "__main__":
    main()
