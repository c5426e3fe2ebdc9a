"""Reads the pair of IDX files in which MNIST is published."""
import gzip
import pathlib

import numpy as np

LABELS, IMAGES = 0x801, 0x803


def read(folder, name, magic):
    """An IDX file, plain or compressed, as an array of bytes."""
    for path, opener in ((pathlib.Path(folder, name + ".gz"), gzip.open), (pathlib.Path(folder, name), open)):
        if path.exists():
            with opener(path, "rb") as file:
                content = file.read()
            break
    else:
        raise SystemExit(f"cannot open {path}, nor the same with .gz")
    header = np.frombuffer(content, ">u4", 1 + (magic & 0xFF))
    if header[0] != magic or len(content) != header.nbytes + np.prod(header[1:]):
        raise SystemExit(f"{path} is not the IDX file that it should be")
    return np.frombuffer(content, np.uint8, offset=header.nbytes).reshape(header[1:].astype(int))


def load(folder, name):
    """Images as rows of numbers from 0 (paper) to 1 (ink), and which digit each shows. name: "train" or "t10k"."""
    images = read(folder, name + "-images-idx3-ubyte", IMAGES)
    labels = read(folder, name + "-labels-idx1-ubyte", LABELS)
    if len(images) != len(labels):
        raise SystemExit(f"{name}: {len(images)} images, but {len(labels)} labels")
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255), labels
