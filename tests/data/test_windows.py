import dataclasses

import jax
import numpy as np
import pytest
from packages import recordings_of

from cpc import data
from cpc.data.recordings import root_mean_square
from cpc.types import UserError


def numbered(lengths, speakers):
    """Sample j of utterance i holds 100 i + j, so that a window identifies its position."""
    waves = [(100 * i + np.arange(length)).astype(np.int16) for i, length in enumerate(lengths)]
    return recordings_of(waves, speakers, rms=np.full(len(waves), data.TARGET_RMS, np.float32))


@pytest.fixture
def five():
    # Speakers are not in order.
    return numbered([12, 30, 10, 15], ["c", "a", "b", "c"])


@pytest.fixture
def with_short():
    return numbered([300, 4, 9, 170, 7, 1], ["c", "a", "b", "a", "c", "b"])


def place(batch):
    """(utterance, start) of each window, from the samples themselves."""
    first = np.round(batch["x"][:, 0] * 32768).astype(int)
    return list(zip((first // 100).tolist(), (first % 100).tolist(), strict=True))


def test_batch_fields_match_its_samples_and_may_be_of_one_speaker(five):
    mixed = data.make_batches(five, window_samples=10, batch_size=32, seed=0)
    batch = mixed(3)
    assert (batch["x"].shape, batch["x"].dtype) == ((32, 10), np.float32)
    for key in ("sequence", "speaker", "utterance"):
        assert batch[key].dtype == np.int32
    assert batch["sequence"].tolist() == list(range(32))
    assert "num_samples" not in batch
    np.testing.assert_allclose(np.diff(batch["x"] * 32768, axis=1), 1, atol=1e-4)  # contiguous
    assert [u for u, _ in place(batch)] == batch["utterance"].tolist()
    names = sorted(set(five.speakers))
    assert [names[s] for s in batch["speaker"]] == [five.speakers[u] for u in batch["utterance"]]
    single = data.make_batches(five, window_samples=10, batch_size=32, seed=0, one_speaker=True)
    assert max(len(set(mixed(s)["speaker"].tolist())) for s in range(20)) == 3
    again, other = (
        data.make_batches(five, window_samples=10, batch_size=32, seed=seed) for seed in (0, 1)
    )
    np.testing.assert_array_equal(again(5)["x"], mixed(5)["x"])
    assert place(mixed(5)) != place(mixed(6))
    assert place(mixed(5)) != place(other(5))
    drawn = [set(single(s)["speaker"].tolist()) for s in range(200)]
    assert all(len(speakers) == 1 for speakers in drawn)
    assert len(set.union(*drawn)) == 3


@pytest.mark.parametrize("one_speaker", [False, True])
def test_processes_share_the_global_batch(with_short, one_speaker):
    options = {"window_samples": 10, "batch_size": 8, "seed": 4, "one_speaker": one_speaker}
    whole = data.make_batches(with_short, **options)(2)
    parts = [
        data.make_batches(with_short, **options, process=p, num_processes=4)(2) for p in range(4)
    ]
    for key, values in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[key] for part in parts]), values)


def test_loudness_tells_nothing():
    rng = np.random.default_rng(0)
    waves = [(a * rng.standard_normal(4000)).astype(np.int16) for a in (50, 5000)]
    rms = np.array([root_mean_square(wave) for wave in waves], np.float32)
    recordings = recordings_of(waves, "ab", rms=rms)
    batch = data.make_batches(recordings, window_samples=4000, batch_size=8, seed=0)(0)
    assert set(batch["utterance"].tolist()) == {0, 1}
    loudness = np.sqrt(np.mean(batch["x"] ** 2, axis=1))
    np.testing.assert_allclose(loudness, data.TARGET_RMS, rtol=1e-4)
    for x, utterance in zip(batch["x"], batch["utterance"].tolist(), strict=True):
        np.testing.assert_array_equal(x, data.read_all(recordings, utterance))
        np.testing.assert_allclose(x, data.read_all(recordings_of(waves, "ab"), utterance))
    assert root_mean_square(np.zeros(0, np.int16)) == 0
    packed = data.make_packed_batches(recordings, window_samples=4000, batch_size=8, seed=0)(0)
    assert packed["x"].dtype == np.int16
    on_device = jax.jit(data.unpack)(packed)
    np.testing.assert_array_equal(on_device["x"], batch["x"])
    assert set(on_device) == set(batch)


def test_a_short_clip_is_drawn_whole_and_filled_up(with_short):
    for make in (data.make_batches, data.make_packed_batches):
        batch = make(with_short, window_samples=10, batch_size=400, seed=0)(0)
        assert set(batch["utterance"].tolist()) == set(range(6))
        assert batch["num_samples"].dtype == np.int32
        for x, utterance, start, number in zip(
            *(batch[name] for name in ("x", "utterance", "start", "num_samples")), strict=True
        ):
            real = 100 * utterance + start + np.arange(10)
            real[number:] = 0
            assert number == min(10, with_short.lengths[utterance])
            assert number == 10 or start == 0
            np.testing.assert_allclose(x, real / (32768 if x.dtype == np.float32 else 1))
    all_short = data.make_batches(with_short, window_samples=301, batch_size=600, seed=0)(0)
    assert np.bincount(all_short["utterance"]).min() > 60  # of 100 each


@pytest.mark.parametrize("one_speaker", [False, True])
def test_every_recording_is_heard_in_proportion_to_its_time(one_speaker):
    """And each of its windows as often, also of one that is just as long as a window or shorter."""
    recordings = numbered([80, 4, 9, 10, 11, 15, 7, 1, 40], [*"cabcacabb"])
    sizes = {"window_samples": 10, "batch_size": 16 if one_speaker else 200}
    make = data.make_packed_batches(recordings, **sizes, seed=1, one_speaker=one_speaker)
    heard, counts = np.zeros(9), np.zeros((9, 81))
    for step in range(2000 if one_speaker else 480):
        batch = make(step)
        np.add.at(heard, batch["utterance"], batch["num_samples"])
        np.add.at(counts, (batch["utterance"], batch["start"]), 1)
    rate = heard / recordings.lengths
    # A clip of up to 11 samples is drawn 4,900 times and more; one speaker's share a draw of 16.
    np.testing.assert_allclose(rate / rate.mean(), 1, atol=0.2 if one_speaker else 0.06)
    for found, length in zip(counts, recordings.lengths, strict=True):
        windows = found[: max(1, length - 9)]
        assert found.sum() == windows.sum()
        # Binomial, and one speaker's share a draw: within 6 deviations.
        spread = np.sqrt(windows.mean() * (16 if one_speaker else 1))
        assert (np.abs(windows - windows.mean()) < 6 * spread).all()
        assert windows.all()


def test_the_line_tells_what_overlaps(with_short):
    batch = data.make_packed_batches(with_short, window_samples=10, batch_size=200, seed=0)(0)
    start, utterance, sample = (batch[name] for name in ("start", "utterance", "sample"))
    assert sample.dtype == np.int32
    same = np.equal.outer(utterance, utterance)
    apart = np.subtract.outer(sample, sample)
    np.testing.assert_array_equal(apart[same], np.subtract.outer(start, start)[same])
    assert (np.abs(apart[~same]) >= 10).all()
    # Positions counted from the end also never overlap another recording.
    end = sample + batch["num_samples"]
    overlaps = (end[:, None] - 10 < end) & (sample < end[:, None])
    assert not overlaps[~same].any()


@pytest.mark.parametrize(("sizes", "words"), [
    ({"batch_size": 0}, "0 windows"), ({"batch_size": -4, "num_processes": 2}, "-4 windows"),
    ({"num_processes": 3}, "3 processes"), ({"window_samples": 0}, "0 samples"),
])  # fmt: skip
def test_impossible_batches(five, sizes, words):
    options = {"window_samples": 10, "batch_size": 2, "seed": 0}
    with pytest.raises(UserError, match=words):
        data.make_batches(five, **(options | sizes))
    with pytest.raises(UserError, match="no recordings"):
        data.make_batches(numbered([], []), **options)
    with pytest.raises(UserError, match="pack them"):
        data.make_batches(dataclasses.replace(five, rms=None), **options)
