"""libddp is unloaded before the process exits; a module registers its backend while libddp loads it."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from jobs import PATIENCE_S, ProcessTest, environment, free_port, main, run_job

# Asks for devices and for a store on etcd, and prints the status and the message of each.
ASK_MODULES = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.ddp_error_message.restype = ctypes.c_char_p
class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("uri", ctypes.c_char_p), ("is_server", ctypes.c_int32), ("flags", ctypes.c_uint32),
                ("timeout_ms", ctypes.c_int64), ("secret", ctypes.c_char_p)]
options = Options(uri=b"etcd://127.0.0.1:1/job", timeout_ms=1000)
options.struct_size = ctypes.sizeof(options)
made = ctypes.c_void_p()
for call in (lambda error: library.ddp_device_count(1, ctypes.byref(made), error),
             lambda error: library.ddp_store_create(ctypes.byref(options), ctypes.byref(made), error)):
    error = ctypes.c_void_p()
    print(call(ctypes.byref(error)), library.ddp_error_message(error).decode())
"""


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

    def test_modules_of_another_build(self):
        """The version is the same, and yet a module's C++ may be another's."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("cuda", "etcd"):
                shutil.copy(os.environ["DDP_PROCESS_OTHER_BUILD"], pathlib.Path(folder, f"libddp-{name}.so"))
            done = subprocess.run([sys.executable, "-c", ASK_MODULES, os.environ["DDP_PROCESS_LIBRARY"]], capture_output=True, text=True,
                                  timeout=PATIENCE_S, check=False, env=environment(DDP_MODULE_PATH=folder))
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in done.stdout.splitlines():
            self.assertRegex(line, r"^-5 .*is of libddp ([0-9.]+)(, build 0)?; this is \1, build [0-9a-f]{16}")
        self.assertEqual(len(done.stdout.splitlines()), 2)


if __name__ == "__main__":
    main()
