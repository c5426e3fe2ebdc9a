#!/usr/bin/env python3
"""The jar works by itself, on a bare class path outside the source tree; where its libraries are taken from; and that nothing is
left in the folder for temporary files, however a process ends.

    jar_test.py JAVA JAVAC JAR JAR-WITHOUT-LIBRARIES JNI-FOLDER SCRATCH      ddprun is $DDPRUN
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

JAVA, JAVAC, JAR, BARE_JAR, JNI = sys.argv[1:6]
SCRATCH = pathlib.Path(sys.argv[6])
PROGRAM = """
import java.nio.*;
import java.nio.file.*;
import org.libddp.*;
public class Program {
    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 1) Ddp.library(Path.of(arguments[1]));
        try (Group group = new Group()) {
            IntBuffer number = ByteBuffer.allocateDirect(4).order(ByteOrder.nativeOrder()).asIntBuffer().put(0, group.rank() + 1);
            group.allreduce(number, Op.SUM);
            System.out.println("sum " + number.get(0));
        }
        for (String line : Files.readAllLines(Path.of("/proc/self/maps"))) {
            if (line.contains("libddp")) System.out.println(line);
        }
        System.out.println("ready");
        System.out.flush();
        if (arguments[0].equals("wait")) Thread.sleep(60000);
    }
}
"""


def start(jar, *arguments, prefix=(), options=()):
    """Nothing of the build's environment, nothing of its folders."""
    command = [*prefix, JAVA, *options, f"-Djava.io.tmpdir={SCRATCH / 'tmp'}", "-cp", f"{SCRATCH}/{jar}:{SCRATCH}/classes", "Program",
               *arguments]
    return subprocess.Popen([str(word) for word in command], cwd=SCRATCH, env={"PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def run(jar, *arguments, **how):
    process = start(jar, *arguments, **how)
    output = process.communicate(timeout=50)[0]
    return process.returncode, output


class Jar(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(SCRATCH, ignore_errors=True)
        (SCRATCH / "tmp").mkdir(parents=True)
        shutil.copy(JAR, SCRATCH / "libddp.jar")
        shutil.copy(BARE_JAR, SCRATCH / "bare.jar")
        (SCRATCH / "Program.java").write_text(PROGRAM)
        subprocess.run([JAVAC, "-cp", SCRATCH / "libddp.jar", "-d", SCRATCH / "classes", SCRATCH / "Program.java"], check=True, timeout=50)

    def tearDown(self):
        # hsperfdata is the virtual machine's own.
        self.assertEqual([each.name for each in (SCRATCH / "tmp").iterdir() if not each.name.startswith("hsperfdata")], [])

    def test_alone_and_on_ranks(self):
        status, output = run("libddp.jar", "end", prefix=(os.environ["DDPRUN"], "-n", "2"))
        self.assertEqual((status, output.count("sum 3")), (0, 2), output)
        self.assertIn(f"{SCRATCH}/tmp", output)  # both libraries were loaded from there
        self.assertNotIn(JNI, output)
        self.assertIn("(deleted)", output)

    def test_killed(self):
        process = start("libddp.jar", "wait")
        lines = []
        while not lines or lines[-1] != "ready\n":
            lines.append(process.stdout.readline())
            self.assertTrue(lines[-1], lines)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)

    def test_where_libraries_are_taken_from(self):
        for jar, options, arguments in (("libddp.jar", (f"-Dorg.libddp.library={JNI}",), ()),
                                        ("libddp.jar", (), (JNI,)), ("libddp.jar", (), (f"{JNI}/libddp_jni.so",)),
                                        ("libddp.jar", (f"-Dorg.libddp.library={JNI}/libddp_jni.so",), ("/nowhere",)),
                                        ("bare.jar", (f"-Djava.library.path={JNI}",), ())):
            with self.subTest(f"{jar} {options} {arguments}"):
                status, output = run(jar, "end", *arguments, options=options)
                self.assertEqual(status, 0, output)
                self.assertIn("sum 1", output)
                self.assertIn(JNI, output)

    def test_not_found(self):
        for jar, options, arguments, word in (("bare.jar", ("-Djava.library.path=/nowhere",), (), "ddp_jni"),
                                              ("libddp.jar", ("-Dorg.libddp.library=/nowhere",), (), "/nowhere"),
                                              ("libddp.jar", (), ("/nowhere",), "/nowhere")):
            with self.subTest(f"{jar} {options} {arguments}"):
                status, output = run(jar, "end", *arguments, options=options)
                self.assertNotEqual(status, 0)
                self.assertIn("UnsatisfiedLinkError", output)
                self.assertIn(word, output)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
