import numpy as np
import pytest
from scipy.special import rel_entr

from cpc import data
from cpc.data.recordings import root_mean_square
from cpc.data.sources.synthetic import FRAME_SAMPLES, NOISE_RMS, stationary
from cpc.types import UserError


def make(**changes):
    options = {"num_speakers": 3, "utterances_per_speaker": 4, "seconds": 2.0, "seed": 5}
    return data.make_synthetic(**{**options, "chain": data.phone_chain(6), **changes})


def uneven_chain():
    return np.random.default_rng(0).dirichlet(np.ones(5), 5)


@pytest.mark.parametrize("offset", [1, 3])
def test_information_against_enumeration(offset):
    """The sum over all pairs (speaker, phone) at two times, written out."""
    chain, num_speakers = uneven_chain(), 3
    power = np.linalg.matrix_power(chain, offset)
    weights = stationary(chain)
    np.testing.assert_allclose(weights @ chain, weights, atol=1e-12)
    joint = np.einsum("uv,ij->uivj", np.eye(num_speakers) / num_speakers, weights[:, None] * power)
    joint = joint.reshape(num_speakers * 5, num_speakers * 5)
    expected = rel_entr(joint, np.outer(joint.sum(axis=1), joint.sum(axis=0))).sum()
    found = data.synthetic_information(offset, chain, num_speakers)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_known_chains():
    for num_phones in (2, 3, 8):
        chain = data.phone_chain(num_phones)
        np.testing.assert_allclose(chain.sum(axis=1), 1)
        np.testing.assert_allclose(stationary(chain), 1 / num_phones)
    cycle = np.roll(np.eye(4), 1, axis=1)  # with entries of 0
    np.testing.assert_allclose(data.synthetic_information(7, cycle, 2), np.log(8))
    with pytest.raises(UserError, match="offset is -1"):
        data.synthetic_information(-1, data.phone_chain(6))


def test_reading_is_pure_and_seeks():
    recordings = make().recordings
    whole = recordings.read(4, 0, int(recordings.lengths[4]))
    assert whole.dtype == np.int16
    for start, stop in ((0, 1), (1000, 1777), (31_999, 32_000), (160, 320)):
        np.testing.assert_array_equal(recordings.read(4, start, stop), whole[start:stop])
        np.testing.assert_array_equal(make().recordings.read(4, start, stop), whole[start:stop])
    assert (make(seed=6).recordings.read(4, 0, 400) != whole[:400]).any()
    measured = [root_mean_square(recordings.read(i, 0, 32_000)) for i in range(len(recordings))]
    np.testing.assert_allclose(recordings.rms, measured, rtol=0.03)
    with pytest.raises(UserError, match="synthetic"):
        make(seconds=0.0)
    # An utterance does not depend on how many there are.
    more = make(utterances_per_speaker=9).recordings
    np.testing.assert_array_equal(more.read(4, 0, 400), whole[:400])


def test_labels_follow_the_chain():
    chain = data.phone_chain(4)
    made = make(chain=chain, utterances_per_speaker=10, seconds=20.0)
    assert made.label_names == tuple(f"phone-{i}" for i in range(4))
    counts = np.zeros((4, 4))
    for labels in made.labels.values():
        np.add.at(counts, (labels[:-3], labels[3:]), 1)
    expected = np.linalg.matrix_power(chain, 3)
    np.testing.assert_allclose(counts / counts.sum(axis=1, keepdims=True), expected, atol=0.02)


def test_a_frame_tells_its_phone_and_speaker_and_nothing_of_its_neighbour():
    made = make(num_speakers=2, chain=data.phone_chain(4), seconds=4.0)
    spectra, states, speakers = [], [], []
    for i, name in enumerate(made.recordings.names):
        samples = made.recordings.read(i, 0, 64_000).reshape(-1, FRAME_SAMPLES)
        spectra.append(np.abs(np.fft.rfft(samples, 2048, axis=1)))
        states.append(made.labels[name])
        speakers.append(np.full(400, i % 2))
    x, classes = np.concatenate(spectra), np.concatenate(speakers) * 4 + np.concatenate(states)
    half = len(x) // 2
    means = np.stack([x[:half][classes[:half] == c].mean(axis=0) for c in range(8)])
    nearest = ((x[half:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == classes[half:]).mean() > 0.99
    # Two frames of one phone differ by their noise and by nothing else.
    samples = made.recordings.read(0, 0, 64_000).reshape(-1, FRAME_SAMPLES)
    labels = made.labels[made.recordings.names[0]]
    same = np.flatnonzero(labels[1:] == labels[:-1])
    difference = (samples[same + 1].astype(int) - samples[same]) / 32768
    assert difference.std() == pytest.approx(np.sqrt(2) * NOISE_RMS, rel=0.05)
