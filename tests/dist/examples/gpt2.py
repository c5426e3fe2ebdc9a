"""The example gpt2 with a small random checkpoint and random tokens: two ranks train what one process trains, and nothing is
copied.

usage: gpt2.py COMMAND...        COMMAND starts the ranks
"""
import random
import struct
import subprocess
import sys
import tempfile

HEADER = 256  # numbers
MAX_TOKENS, VOCABULARY, LAYERS, HEADS, CHANNELS = 64, 200, 3, 2, 32
PADDED = 256


def sizes():
    """Elements of llm.c's 16 tensors."""
    c, l = CHANNELS, LAYERS
    return [PADDED * c, MAX_TOKENS * c, l * c, l * c, 3 * l * c * c, 3 * l * c, l * c * c, l * c, l * c, l * c,
            4 * l * c * c, 4 * l * c, 4 * l * c * c, l * c, c, c]


def header(*numbers):
    return struct.pack(f"{HEADER}i", *numbers, *[0] * (HEADER - len(numbers)))


def main():
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/checkpoint.bin", "wb") as file:
            file.write(header(20240326, 3, MAX_TOKENS, VOCABULARY, LAYERS, HEADS, CHANNELS, PADDED))
            for index, size in enumerate(sizes()):
                scales = index in (2, 8, 14)  # of normalisations
                file.write(struct.pack(f"{size}f", *(1 if scales else rng.gauss(0, 0.02) for _ in range(size))))
        with open(f"{folder}/tokens.bin", "wb") as file:
            count = 20_000
            file.write(header(20240520, 1, count))
            file.write(struct.pack(f"{count}H", *(rng.randrange(VOCABULARY) for _ in range(count))))
        done = subprocess.run([*sys.argv[1:], f"{folder}/checkpoint.bin", f"{folder}/tokens.bin", "--compare-local"],
                              stdout=subprocess.PIPE, universal_newlines=True, timeout=150)
    print(done.stdout)
    assert done.returncode == 0, f"it ended with {done.returncode}"
    assert "bytes copied: 0" in done.stdout
    assert "bound 0.0001 met" in done.stdout


if __name__ == "__main__":
    main()
