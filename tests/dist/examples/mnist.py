#!/usr/bin/env python3
"""Runs an MNIST trainer and checks its exit status, its accuracy, and that it compared itself with local training.

    mnist.py --least-accuracy PERCENT COMMAND...
"""
import re
import subprocess
import sys


def main():
    least, command = float(sys.argv[2]), sys.argv[3:]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=170, check=False)
    print(done.stdout)
    accuracy = re.search(r"test accuracy\s+([0-9.]+) %", done.stdout)
    if done.returncode != 0:
        sys.exit(f"the trainer ended with {done.returncode}")
    if not accuracy or float(accuracy.group(1)) < least:
        sys.exit(f"test accuracy is below {least} % or was not printed")
    if "--compare-local" in command and not re.search(r"bound .*met", done.stdout):
        sys.exit("the comparison with local training was not printed")


if __name__ == "__main__":
    main()
