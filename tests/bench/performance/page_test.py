#!/usr/bin/env python3
"""The page that performance.py writes, with figures that are made up."""
import argparse
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools/bench/runs"))
import gpu
import one_host
import report  # tools/bench/runs
import running

ORDER = ["allreduce", "link"]


def row(peer, size, ms, ratio, fraction=None):
    more = {} if fraction is None else {"fraction": fraction, "limit_ms": ms * fraction}
    return {"peer": peer, "setting": "", "bytes": size, "median_ms": ms, "ratio": ratio, **more}


def judged(mpi_ratio, fraction):
    section = report.Section("allreduce", "Allreduce")
    by_peer = {"libddp shm, group memory": {4 << 20: row("libddp", 4 << 20, 1.0, 1.0, fraction)},
               "Gloo": {4 << 20: row("Gloo", 4 << 20, 9.0, 9.0)}}
    if mpi_ratio:
        by_peer["Open MPI"] = {4 << 20: row("Open MPI", 4 << 20, mpi_ratio, mpi_ratio)}
    section.table(["Bytes", *by_peer, "Limit", "Of it"],
                  [one_host.allreduce_line(4 << 20, by_peer, next(iter(by_peer)))])
    one_host.judge_allreduce(section, by_peer, next(iter(by_peer)))
    return section


def said(section):
    """Its verdicts without the notes, which have none."""
    return [verdict for verdict, *_ in section.verdicts if verdict]


def check_verdicts():
    good, slow, alone = judged(1.5, 0.8), judged(1.2, 0.6), judged(None, 0.8)
    assert said(good) == ["PASS", "PASS", "PASS"], good.verdicts
    assert said(slow) == ["FAIL", "FAIL", "PASS"], slow.verdicts
    assert said(alone) == ["PASS", "not measured", "PASS"], alone.verdicts
    assert ("", "for comparison: the limit of the memory against Gloo at its best",
            "at least 11.2 times as fast (4 MiB)") in good.verdicts
    assert slow.failed and not good.failed and not alone.failed


FACTS = {"machine": "a machine", "commit": "abc", "date": "2000-01-01"}


def check_page(path):
    first, second = judged(1.5, 0.8), report.Section("link", "Link")
    first.command(["ddp-bench", "peers", "a b"])
    second.say("Nothing yet.")
    report.write_page(path, [first, second], ORDER, FACTS)
    before = path.read_text(encoding="utf-8")
    assert "ddp-bench peers 'a b'" in before and "| 4 MiB | 1 | 9 (9) | 1.5 (1.5) | 0.8 | 80 % |" in before, before

    again = report.Section("link", "Link")
    again.say("Measured again.")
    report.write_page(path, [again], ORDER, FACTS)
    after = path.read_text(encoding="utf-8")
    assert after == before.replace("Nothing yet.", "Measured again."), "a section that was not measured has changed"


TRANSFER = """    name  world  median_ms             what  of_copy
transfer      1        2.0             copy        1
transfer      1        2.0  pack and divide        {of_copy}
"""
REPLAY = """  name  median_ms  local_ms  cpu_ms  world  overlap  hook_ms  hook_cpu_ms
replay        2.0       1.0     {cpu}      2     0.87      4.0          0.5
"""
TORCH = "PyTorch 2 DDP, resnet50, view: cpu_ms 1.000  step_ms 3.000  local_ms 2.000  hook_cpu_ms 9.000  hook_ms 12.000  params 161"


def check_gpu(folder):
    for model in gpu.MODELS:
        (folder / f"transfer-{model}.log").write_text(TRANSFER.format(of_copy=0.9 if model == "resnet50" else 0.8))
        for step in ("nccl", "powersgd"):
            (folder / f"replay-{step}-{model}.log").write_text(REPLAY.format(cpu=0.1))
        (folder / f"torch-view-{model}.log").write_text(TORCH)
    for step in ["trace-shm"] + [f"allreduce-{backend}-{size}" for backend in ("shm", "nccl") for size in gpu.SIZES]:
        (folder / f"{step}.log").write_text(REPLAY.format(cpu=0.1))
    one_run = "date     2000-01-01\nchip     A GPU, 1.2, 3 MiB\ncpu      4 processors\ncommit   {}\n"
    (folder / "summary.txt").write_text(one_run.format("abc"))
    options = argparse.Namespace(gpu_logs=folder)
    section = report.Section("gpu", "On a GPU")
    gpu.gpu(section, options)
    assert said(section)[:2] == ["FAIL", "PASS"], section.verdicts
    text = section.markdown(FACTS)
    assert "at least 80 % (pack and divide, bert-large)" in text and "2000-01-01 at commit abc" in text, text
    assert "| resnet50 | 4.0 | 12 | 3 | 0.5 | 9 |" in text, text
    (folder / "summary.txt").write_text(one_run.format("abc") + "----\n" + one_run.format("def"))
    try:
        gpu.gpu(section, options)
        raise AssertionError("figures of two commits were taken for those of one")
    except running.Missing as reason:
        assert "abc, def" in str(reason), reason


def main():
    check_verdicts()
    with tempfile.TemporaryDirectory(prefix="ddp-gpu-") as folder:
        check_gpu(pathlib.Path(folder))
    with tempfile.TemporaryDirectory(prefix="ddp-page-") as folder:
        check_page(pathlib.Path(folder) / "performance.md")


if __name__ == "__main__":
    main()
