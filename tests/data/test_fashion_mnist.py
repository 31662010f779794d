import gzip
import re
import shutil
import struct

import numpy as np
import packages
import pytest
from packages import quiet

from cpc.data.__main__ import main
from cpc.data.sources import fashion_mnist
from cpc.types import UserError


def idx(array):
    sizes = struct.pack(f">{array.ndim}i", *array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + bytes(array)


def packed(array):
    return gzip.compress(idx(array), mtime=0)


#: Images and labels of each split, by the prefix of their files.
IMAGES, LABELS = {}, {}
for prefix, number in (("train", 30), ("t10k", 20)):
    IMAGES[prefix] = np.random.default_rng(number).integers(0, 256, (number, 28, 28), np.uint8)
    LABELS[prefix] = (np.arange(number) % 10).astype(np.uint8)


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A small package of the same form, and an apt-get that has it."""
    folder = tmp_path / "mirror"
    tree = {
        f"usr/share/datasets/fashion-mnist/{prefix}-{kind}-ubyte.gz": packed(array)
        for kind, arrays in (("images-idx3", IMAGES), ("labels-idx1", LABELS))
        for prefix, array in arrays.items()
    }
    package = packages.build_deb(folder, "dataset-fashion-mnist", tree)
    packages.fake_apt(folder, monkeypatch)
    monkeypatch.setattr(fashion_mnist, "PACKAGE", package)
    return folder


def test_both_splits_once_fetched(mirror, tmp_path, capsys):
    assert main(["fashion_mnist"]) == 0
    assert capsys.readouterr().out.splitlines()[-2].split() == ["all", "30", "20"]
    said = []
    splits = fashion_mnist.load_fashion_mnist(said.append)
    assert not said
    for split, prefix in (("train", "train"), ("test", "t10k")):
        np.testing.assert_array_equal(splits[split].pixels[..., 0], IMAGES[prefix])
        np.testing.assert_array_equal(splits[split].labels, LABELS[prefix])
        assert splits[split].class_names[9] == "Ankle boot"
    (notice,) = (tmp_path / "cache/fashion-mnist/licenses").iterdir()
    assert "License: test" in notice.read_text()
    (mirror / "mode").write_text("offline")
    shutil.rmtree(tmp_path / "cache")
    assert main(["fashion_mnist"]) == 2
    assert re.search("no network.*folder of images.*tfds", capsys.readouterr().err)
    assert main(["fashion"]) == 2


def test_damaged_files(tmp_path):
    whole, plain = packed(LABELS["train"]), idx(LABELS["train"])
    for content in (
        whole[:-20], whole[:20] + bytes([whole[20] ^ 255]) + whole[21:], b"hello",
        *map(gzip.compress, (b"\0\0\x0d" + plain[3:], b"", plain[:-1], plain + b"\0",
                             b"\0\0\x08\x02" + struct.pack(">2i", -2, -3) + bytes(6))),
    ):  # fmt: skip
        (tmp_path / "labels.gz").write_bytes(content)
        with pytest.raises(UserError, match=r"labels\.gz"):
            fashion_mnist.read_idx(tmp_path / "labels.gz")


@pytest.mark.parametrize(("name", "array", "message"), [
    ("labels-idx1", np.full(30, 10, np.uint8), "up to 10"),
    ("labels-idx1", np.zeros(29, np.uint8), "not Fashion-MNIST"),
    ("images-idx3", np.zeros((30, 32, 32), np.uint8), "not Fashion-MNIST"),
])  # fmt: skip
def test_other_contents(mirror, tmp_path, name, array, message):
    folder = fashion_mnist.prepare_fashion_mnist(quiet)
    (folder / f"train-{name}-ubyte.gz").write_bytes(packed(array))
    with pytest.raises(UserError, match=message):
        fashion_mnist.load_fashion_mnist(quiet)


@pytest.mark.network
def test_the_real_set():
    """Fetches 31 MB the first time; the numbers of the set as its authors published it."""
    splits = fashion_mnist.load_fashion_mnist(log=quiet)
    assert [len(images) for images in splits.values()] == [60_000, 10_000]
    for images in splits.values():
        assert (np.bincount(images.labels) == len(images) / 10).all()
        assert images.pixels.shape[1:] == (28, 28, 1)
    mean = splits["train"].pixels.mean() / 255
    assert abs(mean - 0.2860) < 5e-5  # the mean that everybody normalizes by
