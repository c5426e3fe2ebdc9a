#!/usr/bin/env python3
"""tools/evaluation/run with tiny sizes: every figure is measured, has data, pictures and verdicts, and is on both pages. The rules that
give verdicts, and its complaints. What it says of times is not looked at.

usage: evaluation_test.py BUILD_FOLDER OUT_FOLDER
"""
import contextlib
import html.parser
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ROOT / "tools/evaluation/run"
BUILD, OUT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
FIGURES = ("2", "6", "7", "8", "9", "10", "11", "12")
sys.path.insert(0, str(RUN.parent))
import buckets  # noqa: E402  (tools/evaluation)
import figure  # noqa: E402
import measuring  # noqa: E402
import overlap  # noqa: E402
import page  # noqa: E402
import processes  # noqa: E402  (tools/bench/peers)
import skipping  # noqa: E402

sys.path.insert(0, str(ROOT / "tests/support"))
from slack import SLACK  # noqa: E402  (tests/support)


def run(*arguments, build=BUILD, **environment):
    """Its status, and all that it said. Programs that it starts end before it does."""
    return processes.run([sys.executable, RUN, "--build", build, "--timeout", "60", *arguments], 120 * SLACK, environment,
                         subprocess.STDOUT)


def started_with(mark):
    """The commands of processes with this variable."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(path.with_name("cmdline").read_bytes())
    return found


class Ids(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.loaded = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name == "src" or (tag == "link" and name == "href"):
                self.loaded.append(value)


class EvaluationTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(OUT, ignore_errors=True)
        cls.done = run("--tiny", "--out", str(OUT))

    def data(self, name):
        return json.loads((OUT / f"figure-{name}.json").read_text(encoding="utf-8"))

    def test_every_figure_has_data_and_verdicts(self):
        status, said = self.done
        self.assertEqual(status, 0, said)
        drawn = importlib.util.find_spec("matplotlib") is not None
        for name in FIGURES:
            data = self.data(name)
            self.assertTrue(data["rows"] and data["commands"] and data["method"] and data["machine"] and data["commit"], name)
            for panel in data["panels"]:
                self.assertTrue(panel["title"] and (panel["bars"] or any(len(series["points"]) > 0 for series in panel["series"])), panel)
            self.assertTrue(any(claim["verdict"] != figure.NOT_RUN for claim in data["claims"]), name)
            for claim in data["claims"]:
                self.assertIn(claim["verdict"], figure.VERDICTS)
                self.assertTrue(all(claim[key] for key in ("paper", "ours", "rule", "reason")), claim)
            self.assertEqual(data["drawn"], drawn, said)
            self.assertEqual((OUT / f"figure-{name}.svg").exists(), drawn)

    def test_a_pass_on_the_gpu_of_another_machine(self):
        row = {"name": "torch-ready", "model": "ResNet-152", "torch": "2.11", "batch": 32, "device": "GPU X", "ready_ms": [10.0, 200.0],
               "elements": [30000000, 10000000]}
        file, out = OUT.with_name("gpu_profile.json"), OUT.with_name("evaluation_gpu")
        file.write_text(json.dumps(row), encoding="utf-8")
        status, said = run("--tiny", "--only", "2", "--gpu-profile", str(file), "--out", str(out))
        self.assertEqual(status, 0, said)
        data = json.loads((out / "figure-2.json").read_text(encoding="utf-8"))
        panel, = (panel for panel in data["panels"] if panel["title"].startswith("(c)"))
        self.assertEqual(panel["title"], "(c) backward pass of ResNet-152 on one GPU X")
        for found, expected in zip(panel["series"][0]["points"][-1], (40, 0.2)):
            self.assertAlmostEqual(found, expected)
        claim = next(claim for claim in data["claims"] if "takes about 250 ms" in claim["paper"])
        self.assertEqual((claim["verdict"], claim["ours"]),
                         (figure.REPRODUCED, "200 ms. After half of the pass 75 % of the gradients' bytes are ready."))
        self.assertIn("on one GPU X of another machine, in FP32, with a batch of 32", " ".join(data["method"]))

    def test_simulated_worlds_are_marked(self):
        for panel in self.data("8")["panels"]:
            self.assertTrue(all(series["simulated"] for series in panel["series"]))
        marks = [series["simulated"] for panel in self.data("9")["panels"] for series in panel["series"]]
        self.assertIn(False, marks)
        self.assertIn(True, marks)

    def test_pages_hold_everything(self):
        text, whole = ((OUT / f"evaluation.{kind}").read_text(encoding="utf-8") for kind in ("md", "html"))
        for name in FIGURES:
            data = self.data(name)
            self.assertIn(f"## {page.heading(data)}\n", text)
            for claim in data["claims"]:
                self.assertIn(f"| {page.cell(claim['paper'])} | {page.cell(claim['ours'])} | {claim['verdict']} |", text)
            self.assertIn(data["commit"], text)
        found = Ids(whole)
        self.assertEqual(found.loaded, [], "the page must need no other file")
        self.assertEqual(len(found.ids), len(set(found.ids)), "names of two pictures must not meet")
        self.assertEqual(whole.count("<svg"), sum(self.data(name)["drawn"] for name in FIGURES))

    def test_a_figure_that_is_measured_again_leaves_the_others(self):
        before = self.data("2")
        status, said = run("--tiny", "--out", str(OUT), "--only", "8")
        self.assertEqual(status, 0, said)
        self.assertEqual(self.data("2"), before)
        self.assertIn("## Figure 2:", (OUT / "evaluation.md").read_text(encoding="utf-8"))

    def test_pages_are_made_of_the_data_alone(self):
        names = ["evaluation.md", "evaluation.html", *(f"figure-{name}.json" for name in FIGURES)]
        before = [(OUT / name).read_bytes() for name in names]
        status, said = run("--redraw", "--out", str(OUT))
        self.assertEqual(status, 0, said)
        self.assertEqual([(OUT / name).read_bytes() for name in names], before)

    def test_what_it_started_ends_with_it(self):
        mark = f"EVALUATION_TEST={os.getpid()}"
        process = subprocess.Popen([sys.executable, RUN, "--build", BUILD, "--tiny", "--only", "10", "--out", str(OUT / "ended")],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                                   env={**os.environ, **dict([mark.split("=")])})
        try:
            self.assertTrue(any("ddp-bench" in line for line in process.stdout), "it does not start ddp-bench")
            time.sleep(0.3)
            process.terminate()
            said = process.communicate(timeout=30 * SLACK)[0]
            self.assertEqual(process.returncode, 143, said)
            self.assertEqual(started_with(mark), [])
            self.assertEqual(list(pathlib.Path("/run/netns").glob(f"ddp{process.pid}[ab]")), [])
        finally:
            processes.end_session(process)

    def test_what_is_wrong_is_said(self):
        no_profile, other_model = OUT / "figure-2.json", OUT.with_name("gpu_profile_50.json")
        other_model.write_text(json.dumps({"name": "torch-ready", "model": "ResNet-50", "device": "GPU X"}), encoding="utf-8")
        for words, arguments in (("--only: there is no figure 3; there are 2, 6", ["--only", "2,3"]),
                                 ("--rate: '1 Gbit' is not a number with mbit or gbit", ["--rate", "1 Gbit"]),
                                 ("--page: there is no folder /nowhere", ["--page", "/nowhere/evaluation.md"]),
                                 ("--page: figures of --tiny mean nothing", ["--tiny", "--page", str(OUT / "page.md")]),
                                 ("figure-2.json: figures of --tiny mean nothing",
                                  ["--redraw", "--out", str(OUT), "--page", str(OUT / "page.md")]),
                                 ("--gpu-profile: /nowhere: ", ["--gpu-profile", "/nowhere"]),
                                 ("not a row that `torch_step.py ready --device cuda` printed", ["--gpu-profile", str(no_profile)]),
                                 ("a row of ResNet-50; the paper's figure is about ResNet-152", ["--gpu-profile", str(other_model)]),
                                 ("not allowed with argument", ["--tiny", "--quick"])):
            status, said = run(*arguments)
            self.assertNotEqual(status, 0)
            self.assertIn(words, said)
        said = run("--page", str(OUT / "page.md"), PATH="/nonexistent")[1]
        self.assertIn("--page: the page names a commit, and git knows none here", said)
        said = run(build="/nowhere")[1]
        self.assertIn("--build: there is no /nowhere/tools/bench/ddp-bench; build the targets", said)


class RulesTest(unittest.TestCase):
    def test_without_a_link_no_claim_about_two_hosts_is_judged(self):
        made = figure.Figure("7", "x")
        made.no_link = "no namespaces"
        with contextlib.redirect_stdout(None):
            for kind in figure.KINDS:
                made.claim("x", "y", figure.REPRODUCED, "rule", "reason", kind)
        self.assertEqual([claim.verdict for claim in made.claims], [figure.NOT_RUN, figure.REPRODUCED, figure.NOT_RUN])

    def test_what_the_documentation_cannot_have(self):
        for size, commit, fit in (("quick", "abc", True), ("tiny", "abc", False), ("full", "abc-dirty", False)):
            self.assertEqual(page.why_unfit({"size": size, "commit": commit}) is None, fit)

    def test_figures_of_a_quick_run_are_named(self):
        for sizes, told in (("full full", None), ("quick quick", "These figures come from a quick run"),
                            ("quick full", "Figure 1 comes from a quick run"), ("quick full quick quick", "Figures 1, 3 and 4 come from")):
            figures = [{"figure": str(i), "size": size} for i, size in enumerate(sizes.split(), 1)]
            found = page.quick_told(figures)
            self.assertTrue(found is None if told is None else found.startswith(told), found)

    def test_kinds_are_counted_apart(self):
        claims = [{"verdict": figure.REPRODUCED, "kind": kind} for kind in (figure.MEASURED, figure.CHOSEN, figure.CHOSEN)]
        self.assertEqual(page.count([{"claims": claims}])[0], (figure.REPRODUCED, [1, 0, 2]))

    def test_numbers(self):
        verdicts = [figure.near(0.38, ours)[0] for ours in (0.38, 0.19, 0.76, 0.18, 0.8, 0.03, -0.38, 0)]
        self.assertEqual(verdicts, [figure.REPRODUCED] * 3 + [figure.IN_SHAPE] * 2 + [figure.NOT] * 3)
        self.assertEqual([figure.at_least(ours, 2, 1, "x")[0] for ours in (2, 1, 0.9)], list(figure.VERDICTS[:3]))
        self.assertEqual([figure.at_most(ours, 1, 2, "x")[0] for ours in (1, 2, 2.1)], list(figure.VERDICTS[:3]))

    def verdicts(self, judge, *calls):
        """The verdicts of a rule for each call's arguments."""
        made = figure.Figure("0", "x")
        with contextlib.redirect_stdout(None):
            for arguments in calls:
                judge(made, *arguments)
        return [claim.verdict for claim in made.claims]

    def test_bucket_sizes(self):
        def judge(made, *times):
            buckets.judge_best(made, dict(zip((0, 5, 25), times)), "x", "model", "tcp", (5,))
        self.assertEqual(self.verdicts(judge, (2, 1, 2), (3, 2, 2.5), (1, 1, 2), (2, 1.01, 1)),
                         [figure.REPRODUCED, figure.REPRODUCED, figure.NOT, figure.NOT])
        self.assertEqual(self.verdicts(lambda made: buckets.judge_best(made, {0: 2, 10: 1, 25: 2}, "x", "model", "tcp", (5,)), ()),
                         [figure.NOT_RUN])
        self.assertEqual(self.verdicts(lambda made: buckets.judge_best(made, {0: 2, 5: 1.5, 10: 1, 25: 2}, "x", "model", "tcp", (5,)), ()),
                         [figure.IN_SHAPE])
        self.assertEqual(self.verdicts(buckets.judge_contrast, ("x", "10gbit", 1.2, 1.0), ("x", "10gbit", 1.3, 1.2),
                                       ("x", "10gbit", 1.29, 1.27)), list(figure.VERDICTS[:3]))

    def test_overlap(self):
        self.assertEqual([overlap.implied("NCCL", saved) for saved in (0.38, 0.352)], [0.92, 0.81])
        self.assertEqual([overlap.implied("Gloo", saved) for saved in (0.268, 0.215)], [2.23, 3.15])
        self.assertEqual(self.verdicts(overlap.judge_equal, ({0.25: 0.1, 1: 0.4, 4: 0.2},), ({0.25: 0.35, 1: 0.4, 4: 0.35},),
                                       ({0.25: 0.1, 1: 0.3, 4: 0.4},)), list(figure.VERDICTS[:3]))
        self.assertEqual(self.verdicts(overlap.judge_shrinking, ({1: 0.4, 2: 0.3, 4: 0.2},), ({1: 0.4, 2: 0.3, 4: 0.35},),
                                       ({1: 0.3, 2: 0.3, 4: 0.3},)), list(figure.VERDICTS[:3]))

    def test_convergence(self):
        def judge(made, small, large):
            finals = {(batch, every): 1.0 for batch in (8, 256) for every in skipping.EVERY}
            skipping.judge_convergence(made, {**finals, (8, 8): small, (256, 8): large}, 2.3)
        self.assertEqual(self.verdicts(judge, (1.04, 1.25), (1.08, 1.15), (1.15, 1.08)),
                         [figure.REPRODUCED] * 2 + [figure.IN_SHAPE] * 2 + [figure.NOT] * 2)

    def test_a_filter_that_does_not_shift(self):
        values = [0.0] * 20 + [1.0] + [0.0] * 20
        smooth = skipping.smoothed(values, 5)
        self.assertEqual(max(range(41), key=smooth.__getitem__), 20)
        self.assertAlmostEqual(skipping.smoothed([3.0] * 9, 4)[-1], 3)

    def test_narrower_models(self):
        self.assertEqual(measuring.narrowed("a 30522 1024 @0.5\nb 4096\nc 1024 4096\n", 4), "a 30522 256 @0.5\nb 1024\nc 256 1024\n")

    def test_rates(self):
        self.assertEqual((measuring.bits_a_second("2gbit"), measuring.bits_a_second("1.5mbit")), (2e9, 1.5e6))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unittest would go on after another exception
    unittest.main(argv=sys.argv[:1], verbosity=2)
