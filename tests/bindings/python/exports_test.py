"""Every function that the library exports is in the low-level module, and every constant of the headers."""
import os
import pathlib
import re
import unittest

import support
from ddp import _ddp

ROOT = pathlib.Path(os.environ["DDP_SOURCE"])


class Exports(unittest.TestCase):
    def test_functions(self):
        exported = (ROOT / "abi" / "ddp.symbols").read_text().split()
        self.assertGreater(len(exported), 100)
        self.assertEqual([name for name in exported if not callable(getattr(_ddp, name, None))], [])

    def test_constants(self):
        text = "".join(path.read_text() for path in sorted((ROOT / "include" / "ddp").glob("*.h")))
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        names = [name for body in re.findall(r"\benum \{(.*?)\}", text, re.DOTALL)
                 for name in re.findall(r"\bDDP_\w+", body)]
        self.assertGreater(len(names), 50)
        self.assertEqual([name for name in names if not isinstance(getattr(_ddp, name, None), int)], [])

    def test_stub_names_what_is_there(self):
        stub = (pathlib.Path(os.environ["DDP_SOURCE"]) / "bindings" / "python" / "ddp" / "_ddp.pyi").read_text()
        for name in re.findall(r"^(?:class|def) (\w+)", stub, re.MULTILINE):
            self.assertTrue(name == "__getattr__" or hasattr(_ddp, name), name)


if __name__ == "__main__":
    support.main()
