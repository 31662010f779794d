"""Tests of the audio tasks "abx", "boundaries" and "codes": scores and errors."""

import dataclasses
import itertools
import json
import re
from typing import Any, cast

import jax
import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from configs import audio_synthetic
from cpc.data import make_items, read_alignments, read_items, select
from cpc.results import read_scores
from cpc.types import Item, UserError
from experiments import abx
from experiments.command.config import with_settings
from experiments.kinds.audio import kind as audio
from experiments.kinds.audio import probes, tasks
from experiments.kinds.audio.data import Frames, Phones
from experiments.training.contrastive import make_probe
from experiments.training.probes import FeatureSet, ProbeContext
from tests import plans

#: A context without a run, because these tasks only need features.
NOTHING: Any = ProbeContext(*[None] * 7)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def data():
    return plans.speech(2, 4, 3.0)


def test_features_that_are_the_phone_have_no_error_and_noise_has_half(data, tmp_path):
    phones = data.phones["synthetic"]
    labels, names = phones.labels, data.test.names
    speakers = dict(zip(names, data.test.speakers, strict=True))
    items = list(make_items(labels, phones.names, speakers))
    assert tasks.items_of(data.test, phones) == items
    question = tasks.abx_task("synthetic", (data.test,), items, False)
    question.record(tmp_path)
    assert read_items(tmp_path / "synthetic.item") == items
    rng = np.random.default_rng(0)
    told = {name: np.float32(1 + 9 * np.eye(4)[x.clip(0)]) for name, x in labels.items()}
    noise = {name: rng.normal(size=x.shape).astype(np.float32) for name, x in told.items()}
    for features, expected in ((told, 0), (noise, 0.5)):
        scores = list(question.answer(NOTHING, FeatureSet("c", Frames(features, 160))))
        assert [score.method for score in scores] == ["within speaker", "across speakers"]
        for score in scores:
            assert abs(score.value - expected) < 0.08, score
        if not expected:
            continue
        losing = tasks.abx_task("synthetic", (data.test,), items, lose_last_frame=True)
        lost = list(losing.answer(NOTHING, FeatureSet("c", Frames(features, 160))))
        assert all(score.setting.endswith("last frame lost") for score in lost)
        assert [score.value for score in lost] != [score.value for score in scores]
    assert question.answer(NOTHING, FeatureSet("supervised", Frames({}, 160))) == []


def test_one_speaker_has_no_abx_across(data, tmp_path, capsys):
    one = [i for i, name in enumerate(data.test.speakers) if name == data.test.speakers[0]]
    part = select(data.test, one)
    question = tasks.abx_task(
        "synthetic", (part,), tasks.items_of(part, data.phones["synthetic"]), False
    )
    question.record(tmp_path)
    assert "synthetic has no ABX across speakers" in capsys.readouterr().out
    features = {name: np.ones((300, 2), np.float32) for name in question.parts[0].names}
    (score,) = question.answer(NOTHING, FeatureSet("c", Frames(features, 160)))
    assert score.method == "within speaker"
    assert abs(score.value - 0.5) < 0.05  # ties, up to rounding of path lengths


def test_tokens_too_short_for_these_features_leave_no_score(capsys):
    """With its last frame lost the only second token of a phone has none."""
    phones = (("a", 0.0, 0.05), ("a", 0.1, 0.11), ("b", 0.2, 0.25))
    items = [Item("x", begin, end, phone, "s", "s", "one") for phone, begin, end in phones]
    feature = FeatureSet("c", Frames({"x": np.ones((30, 2), np.float32)}, 160))
    (score,) = tasks.abx_scores("toy", items, feature, (False,), False)
    assert score.num_test
    assert tasks.abx_scores("toy", items, feature, (False, True), True) == []
    assert "toy: no ABX of c within speaker: too few tokens have" in capsys.readouterr().out


def test_unusable_labels_are_rejected(data):
    config, labels = audio_synthetic.get_config(), data.phones["synthetic"].labels
    few = Phones(dict([*labels.items()][:1]), tuple("abcd"))
    same = Phones({name: np.zeros_like(x) for name, x in labels.items()}, ("a",))
    cut = Phones({name: x[:-40] for name, x in labels.items()}, tuple("abcd"))
    absent = Phones({"x": np.zeros(3, np.int32)}, ("a",))
    for task, phones, words in (
        ("abx", None, "remove abx"), ("boundaries", None, "remove boundaries"),
        ("abx", same, "no speaker of synthetic"), ("abx", absent, "no test utterance .* synthetic"),
        ("abx", cut, "labels but"), ("boundaries", same, "no training utterance of synthetic"),
        ("units", None, "remove units"), ("units", same, "fewer than two phones"),
        ("phones", None, "needs phone labels"), ("phones", cut, "labels but"),
        ("phones", few, "1 training utterances, 4 phones and 1 test utterances"),
        ("phones", same, "8 training utterances, 1 phones and 8 test utterances"),
    ):  # fmt: skip
        config.probe.tasks = (task,)
        given = data._replace(phones={"synthetic": phones} if phones else {})
        with pytest.raises(UserError, match=words):
            probes.probe_tasks(config, given)
    config.probe.tasks, config.probe.features = ("phones",), ("supervised",)
    config.probe.hours = 1e-6
    with pytest.raises(UserError, match="synthetic has one labelled training utterance"):
        probes.probe_tasks(config, data)
    other = dataclasses.replace(data.test, speakers=("x",) * 8)
    for task, changed, words in (
        ("speakers", {"train": other}, "one speaker"),
        ("speakers", {"test": other}, "none of the 8 test utterances"),
        ("verification", {"test": select(data.test, [0, 2])}, r"got 2 utterances by 1\)"),
        ("verification", {"test": select(data.test, [0, 1])}, r"got 2 utterances by 2\)"),
    ):
        config.probe.tasks = (task,)
        with pytest.raises(UserError, match=words):
            probes.probe_tasks(config, data._replace(**changed))


def test_tasks_join_the_scores_of_a_run(data, tmp_path):
    """Bitrates of codes, over all test utterances, only exist for z."""
    config = with_settings(audio_synthetic.get_config(), {
        "model.width": 8, "model.context_width": 8, "model.num_codes": 4, "model.code_width": 3,
        "probe.tasks": ("abx", "codes", "units", "verification", "phones"), "probe.num_units": 6,
        "probe.features": ("z", "random z", "layers", "mfcc context"), "probe.hidden_width": 0,
    })  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    with_frames = {*config.probe.features} - {"layers"}
    audio.geometry(config)
    model, x = audio.build_model(config), np.zeros((1, config.data.window_samples), np.float32)
    variables = jax.jit(model.init)(jax.random.key(0), {"x": x})
    found = make_probe(audio, config, tmp_path, data, model)(variables, 3)
    of_units = [score for score in found if score.method.startswith("k-means 6")]
    by_task = {task: [s for s in found if s.task == task] for task in {s.task for s in found}}
    expected = {*itertools.product(with_frames, ("within speaker", "across speakers"))}
    assert {(s.features, s.method) for s in by_task["ABX"]} == expected
    assert {s.value for s in read_scores(tmp_path)} == {s.value for s in found}
    assert read_items(tmp_path / "probes" / "synthetic.item")
    codes = [score for score in by_task["codes"] if score not in of_units]
    assert [s.features for s in codes] == ["z", "z", "random z", "random z"]
    rate, perplexity, *_ = codes
    assert rate.value == pytest.approx(100 * np.log2(perplexity.value), abs=1e-9)
    assert 1 <= perplexity.value <= 4
    assert (rate.num_test, perplexity.num_test) == (8 * 3, 8 * 300)
    check_units(of_units, with_frames, data, tmp_path)
    assert {s.features for s in by_task["verification"]} == with_frames
    assert {s.num_test for s in by_task["verification"]} == {8 * 7 / 2}
    check_layers({score.features: score for score in by_task["phones"]})


def check_units(scores, with_frames, data, folder):
    """The written units of each feature have the recorded agreement with phones."""
    wanted = ("PNMI", "phone purity", "cluster purity", "bits per second", "ABX error", "ABX error")
    wanted = sorted(itertools.product(with_frames, wanted))
    assert sorted((s.features, s.metric) for s in scores) == wanted
    phone = np.concatenate([data.phones["synthetic"].labels[name] for name in data.test.names])
    for score in scores:
        if score.metric == "PNMI":
            name = f"units_synthetic_{score.features.replace(' ', '_')}_6.txt"
            units, _ = read_alignments(folder / "probes" / name)
            unit = np.concatenate([units[name] for name in data.test.names])
            expected = mutual_info_score(phone, unit) / mutual_info_score(phone, phone)
            assert score.value == pytest.approx(expected, abs=1e-9)


def check_layers(by_feature):
    """The sum has the layer before the quantizer, which z and c are made of."""
    setting = by_feature["layers"].setting
    weights = dict(re.findall(r"(\w+) (\d\.\d\d)", setting.partition("weights ")[2]))
    assert [*weights] == ["z5", "z", "c"]
    assert sum(map(float, weights.values())) == pytest.approx(1, abs=0.02)
    assert by_feature["layers"].value > by_feature["z"].value + 0.3


def test_a_folder_of_features_is_judged_by_an_item_file(tmp_path, capsys):
    """Two speakers say a and b alike, except for one b of the second speaker."""
    told = {"a": [1.0, 0.0], "b": [0.0, 1.0]}
    said = [("one", "s1", "aabb"), ("two", "s2", "aabb")]
    lines = ["#file onset offset #phone prev-phone next-phone speaker"]
    for file, speaker, phones in said:
        frames = [np.array(told[phone]) for phone in phones for _ in range(10)]
        for i, phone in enumerate(phones):
            lines.append(f"{file} {i / 10} {i / 10 + 0.1} {phone} x y {speaker}")
        frames = np.array(frames, np.float32)
        if file == "two":
            frames[:10] = told["b"]
        np.save(tmp_path / f"{file}.npy", frames)
    (tmp_path / "toy.item").write_text("\n".join(lines) + "\n")
    scores = abx.run(str(tmp_path), str(tmp_path / "toy.item"))
    found = {score.method: score.value for score in scores}
    assert found["within, in context"] == found["within, any context"]
    # The first speaker is never wrong. The second one's a's are wrong in 3 of 4 triples, two of
    # them ties, and the b's are in one of 4, two ties.
    assert found["within, in context"] == pytest.approx((3 / 4 + 1 / 4) / 2 / 2, abs=1e-6)
    assert found["across, in context"] == pytest.approx(0.25, abs=1e-6)
    assert "within, in context: " in capsys.readouterr().out
    (tmp_path / "alone.item").write_text("\n".join(lines[:5]) + "\n")
    alone = abx.run(str(tmp_path), str(tmp_path / "alone.item"))
    found = {score.method: score.value for score in alone}
    assert found == {"within, in context": 0, "within, any context": 0}
    assert "across, in context" in capsys.readouterr().out
    (tmp_path / "times.json").write_text(json.dumps({"frame_seconds": 0.005}))
    with pytest.raises(UserError, match="40 features of 5 ms"):
        abx.run(str(tmp_path), str(tmp_path / "toy.item"))
    with pytest.raises(UserError, match="--features and --items are required"):
        abx.run(None, None)


def test_features_of_one_name_or_not_finite_are_refused(tmp_path):
    """The last of a name won, and each comparison with a frame of NaN was an error."""
    for name in ("ann/0001", "bob/0001", "bob/0002"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / f"{name}.npy", np.ones((5, 2), np.float32))
    with pytest.raises(UserError, match=r"ann/0001\.npy and .*bob/0001\.npy have the same name"):
        abx.read_features(tmp_path, {"0001", "0002"})
    assert abx.read_features(tmp_path, {"0002"}).keys() == {"0002"}  # of the others it asks nothing
    for bad in (np.nan, np.inf):
        np.save(tmp_path / "bob/0002.npy", np.array([[1, 1], [1, 1], [1, bad], [1, bad]]))
        with pytest.raises(UserError, match=r"0002\.npy must contain finite floats"):
            abx.read_features(tmp_path, {"0002"})


def test_features_of_the_phone_find_its_edges_and_noise_is_at_chance(data):
    """Phones last 50 to 120 ms, none follows itself, and the sound is irrelevant."""
    rng, labels = np.random.default_rng(0), {}
    for name in data.test.names:
        phones = np.cumsum(rng.integers(1, 4, 60)) % 4
        labels[name] = np.repeat(phones, rng.integers(5, 13, 60))[:300].astype(np.int32)
    data = data._replace(phones={"synthetic": Phones(labels, tuple("abcd"))})
    (question,) = tasks.boundary_tasks(None, data)
    told = {name: np.eye(4, dtype=np.float32)[x.clip(0)] for name, x in labels.items()}
    noise = {name: rng.normal(size=x.shape).astype(np.float32) for name, x in told.items()}
    coarse = {name: x[1::2] for name, x in told.items()}
    for features, stride, low, high in ((told, 160, 0.99, 1), (coarse, 320, 0.95, 1),
                                        (noise, 160, -2, 0.7)):  # fmt: skip
        by_f1, by_r = cast(Any, question.answer)(NOTHING, FeatureSet("c", Frames(features, stride)))
        assert low <= by_r.value <= high
        assert by_r.low <= by_r.value <= by_r.high
        assert by_f1.low <= by_f1.value <= by_f1.high
        assert by_f1.outcomes.sums.sum() / by_f1.outcomes.counts.sum() == by_f1.value
        assert by_f1.chance < 0.8
        true = [tasks.boundaries_of(labels[name]) for name in data.test.names]
        assert by_f1.num_test == sum(map(len, true))
    assert list(question.answer(NOTHING, FeatureSet("supervised", Frames({}, 160)))) == []
