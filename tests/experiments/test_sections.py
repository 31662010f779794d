"""Sections of the audio and image pages."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from cpc.files import read_arrays, write_arrays
from cpc.report.draw import GREEN, RED
from cpc.report.engine import cells
from cpc.results import read_run
from experiments.kinds.audio import sections as audio
from experiments.kinds.image import figures
from experiments.kinds.image import sections as image
from tests.fake_image_run import CLASSES, write_fake_image_run
from tests.fake_run import write_fake_run


@pytest.fixture
def voices(tmp_path):
    return write_fake_run(tmp_path / "voices", num_steps=250)


@pytest.fixture
def shapes(tmp_path):
    return write_fake_image_run(tmp_path / "shapes")


def test_paper_table_is_compared_with_the_run(voices):
    section = audio.paper_section(read_run(voices))
    phones, speakers = section.tables
    assert cells(phones)[1] == ["MFCC", "61.4", "39.7"]
    assert cells(phones)[3] == ["CPC, one hidden layer", "63.4", "72.5"]
    assert cells(speakers)[-1][1:] == ["–", "98.5"]  # without a supervised network
    (voices / "scores.json").unlink()
    assert audio.paper_section(read_run(voices)) is None


def test_speaker_map_is_capped_and_needs_points(voices, monkeypatch):
    monkeypatch.setattr(audio, "MAX_POINTS", 60)
    path = voices / "probes" / "speaker_map.npz"
    path.unlink()
    assert audio.speakers_section(read_run(voices)) is None

    def write(count):
        features = np.random.default_rng(0).standard_normal((count, 4), dtype=np.float32)
        names = np.array(["anna", "<script>"])
        write_arrays(path, features=features, speaker=np.arange(count) % 2, names=names)
        return audio.speakers_section(read_run(voices))

    assert write(5) is None
    (figure,) = write(80).figures
    (axes,) = figure.figure.axes
    assert sum(len(points.get_offsets()) for points in axes.collections) == 60


FLAT = {
    "rounding": 5 + 1e-7 * np.arange(24 * 4).reshape(24, 4),
    "nine values": np.repeat(np.arange(9.0), 4)[:, None] * np.ones(5),
    "few": np.arange(12.0).reshape(4, 3), "infinite": np.where(np.eye(24), np.inf, 1.0),
}  # fmt: skip


def test_equal_points_have_no_map(voices):
    path = voices / "probes" / "speaker_map.npz"
    for name, points in FLAT.items():
        speaker = np.arange(len(points)) % 2
        assert audio.draw_speakers(points.astype(np.float32), speaker, ["a", "b"]) is None, name
        names = np.array(["a", "b"])
        write_arrays(path, features=points.astype(np.float32), speaker=speaker, names=names)
    section = audio.speakers_section(read_run(voices))
    assert (section.figures, "left out" in section.sentences[0]) == ((), True)
    path.write_bytes(b"PK")
    section = audio.speakers_section(read_run(voices))
    assert (section.figures, path.name in section.sentences[0]) == ((), True)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_map_of_partly_equal_points_at_any_scale(scale):
    values = np.random.default_rng(0).standard_normal((12, 3))
    points = np.repeat(values, 4, axis=0) if scale > 1 else values[:, :1]
    flat = audio.flat_points((scale * points).astype(np.float32))
    assert flat.shape == (len(points), 2)
    assert np.isfinite(flat).all()


def test_missing_and_damaged_images_are_named(shapes):
    paths = {path.stem: path for path in (shapes / "probes").glob("*.npz")}
    paths["augmented"].write_bytes(b"PK")
    section = image.images_section(read_run(shapes))
    assert {figure.name for figure in section.figures} == image.CAPTIONS.keys() - {"augmented"}
    assert "augmented.npz" in section.sentences[0]
    for path in paths.values():
        path.unlink()
    section = image.images_section(read_run(shapes))
    assert section.figures == []
    assert all(f"probes/{name}.npz" in section.sentences[0] for name in image.CAPTIONS)


def test_neighbors_are_framed_by_class(shapes):
    arrays = read_arrays(shapes / "probes" / "neighbours.npz")
    (axes,) = figures.neighbors_figure(arrays).axes
    assert len(axes.images) == 8 + 64
    is_same = arrays["neighbour_labels"] == arrays["query_labels"][:, None]
    frames = [to_hex(frame.get_edgecolor()) for frame in axes.patches]
    assert frames == [GREEN if same else RED for same in is_same.ravel()]
    words = [text.get_text() for text in axes.texts]
    assert words[:8] == [CLASSES[label] for label in arrays["query_labels"]]
    assert words[8:] == [CLASSES[label] for label in arrays["neighbour_labels"][~is_same]]
    shown = axes.images[8 + 13].get_array()[..., 2]
    np.testing.assert_array_equal(shown, arrays["neighbours"][1, 5, ..., 0])
