"""The examples of preemption: signals to ddprun make all ranks write a checkpoint, and stop, after the same step. The next start ends with the
numbers of a training that nobody has interrupted.

usage: preemption.py DDPRUN COMMAND...        COMMAND is a trainer, which gets a file and a number of steps
"""
import re
import signal
import subprocess
import sys
import tempfile
import time

DDPRUN, *TRAINER = sys.argv[1:]
RANKS = 3
STEPS = 500  # of 2 ms
BOUND = 120  # seconds


def start(path):
    return subprocess.Popen([DDPRUN, "-n", str(RANKS), "--checkpoint-on", "SIGUSR1", "--stop-on", "SIGTERM", *TRAINER, path,
                             str(STEPS)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(job, text, status=0):
    text += job.communicate(timeout=BOUND)[0]
    print(text, flush=True)
    if job.returncode != status:
        sys.exit(f"ended with {job.returncode}")
    last = re.findall(r"(?m)^\[\d\] rank \d: (stopped|done) after step (\d+), (y = .*)$", text)
    if len(last) != RANKS or len(set(last)) != 1:
        sys.exit(f"the ranks end differently: {last}")
    return text, last[0][0], int(last[0][1]), last[0][2]


def read_until(job, pattern, count):
    text = ""
    while len(re.findall(pattern, text)) < count:
        line = job.stdout.readline()
        if not line:
            sys.exit(f"ended with {job.wait(BOUND)} before {pattern}:\n{text}")
        text += line
    return text


def main():
    with tempfile.TemporaryDirectory() as folder:
        *_, expected = end(start(f"{folder}/whole"), "")
        path = f"{folder}/state"
        job = start(path)
        text = read_until(job, "from step 0", RANKS)
        time.sleep(0.1)
        job.send_signal(signal.SIGUSR1)
        text += read_until(job, "checkpoint after step", RANKS)
        time.sleep(0.1)
        job.send_signal(signal.SIGTERM)
        text, how, stopped, _ = end(job, text, status=128 + signal.SIGTERM)
        saves = re.findall(r"checkpoint after step (\d+)", text)
        if how != "stopped" or len(saves) != 2 * RANKS or len(set(saves)) != 2 or str(stopped) not in saves:
            sys.exit(f"{how} after step {stopped}, with checkpoints after {saves}")
        text, how, step, result = end(start(path), "")
        if (how, step, result) != ("done", STEPS, expected) or text.count(f"from step {stopped}") != RANKS:
            sys.exit(f"it went on to {result}, and {expected} is expected")


main()
