"""The output of `ddp-why --json` and the report about a planted job (report_worker.c): rank 1 is late in each step."""
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from slack import SLACK  # noqa: E402

DDPRUN, WHY, WORKER = os.environ["DDPRUN"], os.environ["DDP_WHY"], os.environ["DDP_REPORT_WORKER"]
RANKS, STEPS, LATE_MS, BUCKETS = 3, 40, 20, 3
BOUND = 120 * SLACK
CHROMIUM = shutil.which("chromium")
REPORT = pathlib.Path(__file__).resolve().parents[3] / "tools" / "why" / "report.py"


def run(*command, status=0, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, timeout=BOUND, errors="replace", **options)
    if done.returncode != status:
        raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def has_plotly(python):
    return subprocess.run([python, "-c", "import plotly"], capture_output=True).returncode == 0


PYTHONS = [python for python in (shutil.which("python3"), "/usr/bin/python3") if python and os.path.exists(python)]
needs_plotly = unittest.skipUnless(any(map(has_plotly, PYTHONS)), "no python3 has plotly (Debian: python3-plotly)")


class Page(html.parser.HTMLParser):
    """The view of a browser on a page: its elements, the files that it would load, its visible text, and the data of the plots."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.loads, self.handlers, self.words, self.plots, self.within = {}, [], [], [], "", []
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(self.words)
        self.plots = json.loads(self.plots)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.loads += [attributes[name] for name in ("src", "href", "data", "action", "srcset") if name in attributes]
        self.handlers += [name for name in attributes if name.startswith("on")]
        self.within.append((tag, attributes.get("id")))

    def handle_endtag(self, tag):
        while self.within and self.within.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tag, name = self.within[-1] if self.within else ("", "")
        if tag == "style" and ("url(" in data or "@import" in data):
            self.loads.append(data)
        if name == "plots":
            self.plots += data
        elif tag not in ("script", "style"):
            self.words.append(data)


class ReportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.records = cls.folder / "records"
        run(DDPRUN, "-n", RANKS, "--record", cls.records, WORKER, STEPS, LATE_MS, -1)
        cls.told = run(WHY, cls.records, "--json", cls.folder / "job.json").stdout
        cls.job = json.loads((cls.folder / "job.json").read_text(encoding="utf-8"))
        cls.group, = cls.job["groups"]

    def make(self, *arguments):
        """A page of the records."""
        page = self.folder / f"{self.id()}.html"
        run(WHY, self.records, "--report", page, *arguments)
        return page

    def test_the_steps_of_each_rank(self):
        context, = self.group["contexts"]
        self.assertEqual([rank["rank"] for rank in context["ranks"]], [0, 1, 2])
        for rank in context["ranks"]:
            self.assertEqual(rank["steps"], list(range(STEPS)))
            self.assertEqual(rank["synced"], [True] * STEPS)
            self.assertEqual(rank["step_ns"][0], None)  # nobody knows when it began
            for i in range(1, STEPS):
                sum_of_parts = sum(rank[part][i] for part in ("own_ns", "collectives_ns", "backward_ns", "hook_ns", "exposed_ns"))
                self.assertAlmostEqual(sum_of_parts, rank["step_ns"][i], delta=2)
            # A rank that the system has held back at the end of a step has a short one next.
            self.assertGreater(sum(rank["step_ns"][2:]) / (STEPS - 2), 0.8 * LATE_MS * 1e6)
            self.assertEqual(rank["share"], [0] * STEPS)  # no batch is shared
            self.assertEqual(rank["gradient_bytes"], [BUCKETS * 4000] * STEPS)
            for sent in rank["sent_bytes"]:  # a buffer is a little longer than its gradients
                self.assertTrue(1 <= sent / (BUCKETS * 4000) < 1.1, sent)
        waits = [sum(rank["exposed_ns"][1:]) / (STEPS - 1) / 1e6 for rank in context["ranks"]]
        self.assertGreater(min(waits[0], waits[2]), 0.4 * LATE_MS)
        self.assertLess(waits[1], min(waits[0], waits[2]))

    def test_the_buckets_of_two_steps(self):
        context, = self.group["contexts"]
        for which in ("median_step", "worst_step"):
            step = context[which]
            for rank in step["ranks"]:
                self.assertEqual([bucket["bucket"] for bucket in rank["buckets"]], list(range(BUCKETS)))
                for bucket in rank["buckets"]:
                    operation, = bucket["operations"]
                    self.assertLessEqual(bucket["launch_ns"], operation["begin_ns"])
                    self.assertLessEqual(operation["begin_ns"], operation["all_there_ns"])
                    self.assertLess(operation["begin_ns"], operation["end_ns"])
                    self.assertLessEqual(operation["end_ns"], rank["end_ns"])
        self.assertLessEqual(context["median_step"]["step_ns"], context["worst_step"]["step_ns"])

    def test_who_is_late(self):
        lateness = self.group["lateness"]
        self.assertEqual(lateness["steps"], list(range(STEPS)))
        behind = [sum(row) / STEPS / 1e6 for row in lateness["behind_ns"]]
        self.assertGreater(behind[1], 0.5 * LATE_MS)
        self.assertLess(behind[1], 3 * LATE_MS * SLACK)
        self.assertEqual(behind.index(max(behind)), 1)
        self.assertEqual(self.group["pace"]["slow"], 1)
        self.assertIn("rank 1 is slow", self.group["pace"]["sentence"])
        self.assertIn(self.group["pace"]["sentence"], self.told)
        self.assertEqual(self.group["cause"], None)
        self.assertEqual([rank["where"] for rank in self.group["ranks"]], ["out of the group, which it has freed"] * RANKS)

    def test_marks(self):
        for process in self.job["processes"]:
            marks = {mark["name"]: mark for mark in process["marks"]}
            self.assertEqual(set(marks), {"data", "</script><i>forward</i> \ufffd"})
            data = marks["data"]
            self.assertEqual(data["count"], STEPS)
            sleep = STEPS * (LATE_MS if process["launch_rank"] == 1 else 1) * 1e6
            self.assertGreaterEqual(data["ns"], sleep)

    def test_the_timeline_takes_any_name(self):
        run(WHY, self.records, "--trace", self.folder / "trace.json")
        json.loads((self.folder / "trace.json").read_text(encoding="utf-8"))

    @needs_plotly
    def test_the_page(self):
        page = Page(self.make())
        self.assertEqual(page.loads, [])
        self.assertEqual(page.handlers, [])
        self.assertEqual({tag for tag in ("img", "i", "b", "iframe", "link", "object") if tag in page.tags}, {"b"})  # of the tiles
        self.assertEqual(page.tags["script"], 3)  # data, plotly, and what starts it
        self.assertIn(self.group["pace"]["sentence"], page.text)
        self.assertIn("No rank waits for another", page.text)
        self.assertIn("Group '<img src=x onerror=alert(1)> \ufffd'", page.text)
        self.assertIn("</script><i>forward</i> \ufffd", page.text)

        times, = [plot for plot in page.plots.values() if [trace.get("name") for trace in plot["data"]] == ["rank 0", "rank 1", "rank 2"]
                  and plot["data"][0]["type"] == "scatter"]
        for trace, rank in zip(times["data"], self.group["contexts"][0]["ranks"]):
            self.assertEqual(trace["x"], rank["steps"][1:])
            for shown, ns in zip(trace["y"], rank["step_ns"][1:]):
                self.assertAlmostEqual(shown, ns / 1e6, delta=1e-3)
        heat, = [plot["data"][0] for plot in page.plots.values() if plot["data"][0]["type"] == "heatmap"]
        for row, behind in zip(heat["z"], self.group["lateness"]["behind_ns"]):
            self.assertEqual(len(row), STEPS)
            for shown, ns in zip(row, behind):
                self.assertAlmostEqual(shown, ns / 1e6, delta=1e-3)
        # plotly reads some HTML in its texts.
        texts = [text for plot in page.plots.values() for trace in plot["data"] for text in [*(trace.get("text") or []), *(trace.get("y") or [])]
                 if isinstance(text, str)]
        self.assertTrue(any("&lt;/script&gt;" in text for text in texts))
        self.assertFalse(re.search(r"<(?!br>)", "".join(texts)))

    @needs_plotly
    def test_of_a_job_that_fails(self):
        page = self.folder / "failed.html"
        done = run(DDPRUN, "-n", RANKS, "--report", page, WORKER, STEPS, 1, 5, status=1)
        text = Page(page).text
        self.assertIn("The error that broke the group", text)
        self.assertRegex(text, r"rank 1, step 5: 1 of 3 gradients was never announced .*</script><script>alert\('name'\)")
        self.assertIn("exited with status 1", text)
        self.assertNotIn("--report", done.stderr)

    @needs_plotly
    def test_after_a_restart_it_shows_the_last_generation(self):
        page = self.folder / "restarted.html"
        script = f'[ "$DDP_RESTART" = 0 ] || exec {WORKER} 12 1 -1; exec {WORKER} 12 1 3'
        run(DDPRUN, "-n", RANKS, "--max-restarts", 1, "--report", page, "/bin/sh", "-c", script)
        text = Page(page).text
        self.assertNotIn("never announced", text)
        self.assertIn("No rank waits for another", text)

    @needs_plotly
    def test_without_data(self):
        for name, steps in (("empty", None), ("no-steps", 0)):
            records, page = self.folder / name, self.folder / f"{name}.html"
            records.mkdir()
            if steps is None:
                (records / "broken.record").write_bytes(b"no record")
                run(WHY, records, "--report", page, status=1)
                self.assertIn("There is no record of a group of several ranks", Page(page).text)
                self.assertIn("broken.record is not a record of libddp", Page(page).text)
            else:
                run(DDPRUN, "-n", 2, "--record", records, WORKER, steps, 1, -1)
                run(WHY, records, "--report", page)
                self.assertIn("The records hold no step that has ended", Page(page).text)

    def test_without_plotly(self):
        page = self.folder / "none.html"
        # -S and -I: the modules of Python itself only
        done = run(sys.executable, "-S", "-I", "-B", REPORT, self.folder / "job.json", page, status=1)
        self.assertIn("apt-get install python3-plotly", done.stderr)
        self.assertIn("-m pip install plotly", done.stderr)
        self.assertFalse(page.exists())

    def test_the_summary_is_there_without_a_page(self):
        done = run(WHY, self.records, "--json", self.folder / "alone.json", "--report", self.folder / "nowhere" / "page.html", status=1)
        self.assertIn("python3 has made no report", done.stderr)
        self.assertEqual(json.loads((self.folder / "alone.json").read_text(encoding="utf-8"))["format"], "ddp-why 1")

    def test_a_full_disk(self):
        for option in ("--json", "--trace"):
            done = run(WHY, self.records, option, "/dev/full", status=1)
            self.assertIn("ddp-why: cannot write /dev/full: No space left on device", done.stderr)
        for words in ((self.records,), ("--help",), ("--version",)):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([WHY, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (1, "ddp-why: cannot write standard output: No space left on device\n"))

    @needs_plotly
    def test_a_full_disk_under_the_page(self):
        done = run(WHY, self.records, "--report", "/dev/full", status=1)
        self.assertIn("report.py: cannot write /dev/full: No space left on device", done.stderr)

    @needs_plotly
    @unittest.skipUnless(CHROMIUM, "no chromium")
    def test_in_a_browser(self):
        page = self.make()
        done = run(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1000,800",
                   f"--user-data-dir={self.folder}/chromium", "--virtual-time-budget=30000", "--dump-dom", page.as_uri())
        self.assertEqual([line for line in done.stderr.splitlines() if "CONSOLE" in line], [])
        drawn = {part: done.stdout.count(f'class="{part}') for part in ("main-svg", "trace scatter", "trace bars", "hm")}
        self.assertTrue(all(drawn.values()), drawn)
        plots = len(Page(page).plots)
        self.assertEqual(plots, 6)
        self.assertEqual(len(re.findall(r'<div class="plot js-plotly-plot', done.stdout)), plots)
        self.assertNotRegex(done.stdout, r'data-title="(Share|Edit)')  # which would send the data away
        self.assertIn("rank 1 is slow", done.stdout)
        self.assertRegex(done.stdout, r'class="legendtext"[^>]*>rank 2<')
        self.assertRegex(done.stdout, r'class="ytick"><text[^>]*>&lt;/script&gt;&lt;i&gt;forward')


if __name__ == "__main__":
    unittest.main(verbosity=2)
