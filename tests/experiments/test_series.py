"""Numeric series: reading, splits, labels, windows, probes, and a whole run."""

import contextlib
import itertools
import json
import pathlib
import zipfile
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from configs import series_ar1, series_files
from cpc import models, negatives
from cpc.data import series as files
from cpc.models import features
from cpc.results import Outcomes, Score, read_scores
from cpc.types import CPCOutputs, SoundPosition, UserError
from experiments import status
from experiments.command.config import with_settings
from experiments.kinds.series import data
from experiments.kinds.series import kind as series
from experiments.kinds.series import probes as series_probes
from experiments.training.objective import objective_loss
from tests import plans
from tests.commands import flags_of, run

TINY = {
    "num_steps": 2, "log_every": 1, "eval_every": 2, "save_every": 2, "optim.warmup_steps": 1,
    "data.num_files": 60, "data.batch_size": 8, "data.window_steps": 8, "model.width": 4,
    "model.context_width": 4, "model.num_offsets": 1, "evaluate.num_windows": 8,
    "probe.features": ("c", "raw"),
}  # fmt: skip


def write(folder, name, values, **labels):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, values)
    elif path.suffix == ".npz":
        np.savez(path, x=values, **labels)
    else:
        frame = pd.DataFrame(values).assign(**labels)
        frame.columns = frame.columns.astype(str)
        if path.suffix == ".csv":
            frame.to_csv(path, index=False)
        else:
            frame.to_parquet(path)
    return path


@pytest.mark.parametrize("form", [".npy", ".npz", ".csv", ".parquet"])
def test_all_file_formats_give_the_same_values(tmp_path, form):
    values = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    labels = {} if form == ".npy" else {"stage": np.array(["rest", "move"] * 15)}
    path = write(tmp_path, f"a/one{form}", values, **labels)
    for where, names in ((tmp_path, ("a/one",)), (path, ("one",))):
        found = files.read_sequences(where, 2, standardize=False, step_label="stage")
        assert found.names == names
        np.testing.assert_allclose(found.read(0, 3, 9), values[3:9], rtol=1e-6)
        assert (found.steps[0] is None) == (form == ".npy")


@pytest.mark.parametrize(("order", "shape"), [("C", (50,)), ("F", (50, 2))])
def test_large_npy_is_read_from_disk_without_open_descriptors(tmp_path, monkeypatch, order, shape):
    monkeypatch.setattr(files, "HELD_BYTES", 100)
    x = np.asarray(np.random.default_rng(0).normal(size=shape), order=order)
    for number in range(20):
        write(tmp_path, f"{number:02}.npy", x + number)
    descriptors, channels = pathlib.Path("/proc/self/fd"), shape[1] if len(shape) > 1 else 1
    before = len([*descriptors.iterdir()])
    found = files.read_sequences(tmp_path, channels, standardize=False)
    assert isinstance(found.values[0], files.NpyFile)
    read = [found.read(number, 7, 20) for number in range(20)]
    assert len([*descriptors.iterdir()]) <= before + 1
    for number, one in enumerate(read):
        expected = (x.reshape(50, channels)[7:20] + number).astype(np.float32)
        np.testing.assert_array_equal(one, expected)


@pytest.mark.parametrize("form", [".npy", ".csv"])
def test_channels_are_standardized_at_any_scale_and_offset(tmp_path, monkeypatch, form):
    monkeypatch.setattr(files, "BLOCK_STEPS", 64)
    x = np.random.default_rng(0).normal(size=1000)
    constant = np.full(1000, 0.1)
    values = np.stack([1e-13 * x, 101325 + 0.01 * x, 1e8 + x, constant, 1e-13 * constant], 1)
    write(tmp_path, f"x{form}", values)
    found = files.read_sequences(tmp_path, 5).read(0, 0, 1000)
    assert found.dtype == np.float32
    standard = (x - x.mean()) / x.std()
    np.testing.assert_allclose(found[:, :3], np.stack([standard] * 3, 1), rtol=1e-3, atol=1e-5)
    assert not found[:, 3:].any(), "constant"


def test_unreadable_files_are_skipped_with_reasons(tmp_path, monkeypatch):
    hole = np.zeros((5, 2))
    hole[3, 1] = np.nan
    for name, values in (
        ("hole", hole), ("wide", np.zeros((5, 3))), ("deep", np.zeros((5, 2, 2))),
        ("empty", np.zeros((0, 2))), ("text", np.array(["a", "b"])), ("objects", np.array([{}])),
    ):  # fmt: skip
        np.save(tmp_path / f"{name}.npy", values, allow_pickle=True)
    np.savez(tmp_path / "two.npz", a=hole, b=hole)
    np.savez(tmp_path / "short.npz", x=np.zeros((5, 2)), stage=np.arange(4))
    for name, content in (
        ("ragged.csv", b"a,b\n1,2\n3\n1,2,3\n"), ("words.csv", b"a,b\n1,x\n"),
        ("hole.csv", b"a,b\n1,2\n3,\n"), ("no.parquet", b"no"), ("none.npz", b""),
        ("cut.npz", b"PK\x03\x04no"), ("notes.txt", b"left alone"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
    with zipfile.ZipFile(tmp_path / "zip.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", b"")
    write(tmp_path, "good.npy", np.zeros((5, 2)))
    found = files.read_sequences(tmp_path, 2, step_label="stage")
    assert found.names == ("good",)
    assert len(found.skipped) == 15 + 1
    assert found.skipped[-1][0].endswith("notes.txt")
    reasons = dict(found.skipped)
    for name, words in (("hole.npy", "step 3"), ("wide.npy", "set data.channels, which is 2"),
                        ("zip.npz", "compression")):  # fmt: skip
        assert words in reasons[name]
    assert all("\n" not in reason and "allow_pickle" not in reason for reason in reasons.values())

    # Readers may raise anything.
    monkeypatch.setattr(files, "read_table", mock.Mock(side_effect=RecursionError))
    reasons = dict(files.read_sequences(tmp_path, 2, step_label="stage").skipped)
    assert "RecursionError" in reasons["words.csv"]
    with pytest.raises(UserError, match="15 of 16 files"):
        files.read_sequences(tmp_path, 2, step_label="stage", max_skipped_fraction=0.5)
    (tmp_path / "good.npy").unlink()
    with pytest.raises(UserError, match="15 of 15 files"):
        files.read_sequences(tmp_path, 2, step_label="stage")


def test_missing_duplicate_and_transposed_series_are_rejected(tmp_path):
    (tmp_path / "nothing").mkdir()
    (tmp_path / "notes.txt").touch()
    for name, *shape in (("twice/a.npy", 5, 1), ("twice/a.csv", 5, 1), ("wide/a.npy", 19, 3000),
                         ("three/a.npy", 3, 3000), ("one/a.npy", 1, 50)):  # fmt: skip
        write(tmp_path, name, np.zeros(shape))
    for name, channels, words in (
        ("absent", 1, "does not exist"), ("nothing", 1, "no series in"),
        ("notes.txt", 1, "is not a series"), ("twice", 1, "the name a"),
        ("wide", 19, "looks transposed"), ("three", 1, "looks transposed"),
        ("one", 2, "looks transposed"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            files.read_sequences(tmp_path / name, channels)


def tiny(**settings):
    return with_settings(series_ar1.get_config(), TINY | settings)


def configure(tmp_path, **settings):
    given = {"data.path": str(tmp_path), "data.window_steps": 32, "data.batch_size": 4}
    return with_settings(series_files.get_config(), given | settings)


def test_windows_are_drawn_by_length_and_match_the_files(tmp_path):
    rng = np.random.default_rng(0)
    for number, length in enumerate((40, 100, 20)):  # the last file is shorter than a window
        write(tmp_path, f"{number}.npy", rng.normal(size=(length, 1)).astype("f"))
    found = files.read_sequences(tmp_path, 1, standardize=False)
    part = data.Part(found, ((0, 0, 40), (1, 10, 90), (2, 0, 20)))
    draw = data.make_windows(part, window_steps=32, batch_size=400, seed=3)
    batch, again = draw(5), draw(5)
    np.testing.assert_array_equal(batch["x"], again["x"])
    assert not np.array_equal(batch["x"], draw(6)["x"])
    rows = zip(batch["x"], batch["utterance"], batch["start"], batch["num_samples"], strict=True)
    for x, file, start, number in rows:
        assert number == (20 if file == 2 else 32)
        np.testing.assert_array_equal(x[:number], found.values[file][start : start + number])
        assert not x[number:].any()
    begins = np.array([0, 40, 140])[batch["utterance"]]
    np.testing.assert_array_equal(batch["sample"], begins + batch["start"])
    assert batch["start"][batch["utterance"] == 1].min() >= 10
    count = np.bincount(batch["utterance"], minlength=3)
    assert 0.17 < count[0] / 400 < 0.33, "40 of 40 + 90 + 32"
    assert 0.13 < count[2] / 400 < 0.27, "32 of these"
    long = data.Part(found, part.pieces[:2])
    assert "num_samples" not in data.make_windows(long, window_steps=32, batch_size=4, seed=3)(0)


def problem_of(tmp_path, lengths, **settings):
    rng = np.random.default_rng(1)
    for number, length in enumerate(lengths):
        write(tmp_path, f"{number}.npy", rng.normal(size=(length, 1)).astype("f"))
    settings = {"model.kernels": (3,), "model.strides": (2,), "model.num_offsets": 3,
                "model.width": 4, "model.context_width": 4, "data.batch_size": 6,
                "seed": 1} | settings  # fmt: skip
    config = configure(tmp_path, **settings)
    return plans.problem_of(config, data.load_data(config, str))


@pytest.mark.parametrize("lengths", [(400,), (50, 60, 20, 12, 70)], ids=["one", "some short"])
def test_overlapping_windows_are_not_negatives(tmp_path, lengths):
    problem, b, t, num_excluded = problem_of(tmp_path, lengths), 6, 16, 0
    assert problem.plan.geometry.num_latents == t
    outputs = CPCOutputs(*(jnp.zeros((b, t, 1)) for _ in range(3)))
    for batch in map(problem.draw, range(10)):
        ((_, located, mask),) = problem.split_branches(outputs, batch)
        real = batch.get("num_samples", np.full(b, 32))
        there = np.arange(t) < (real // 2)[:, None]
        assert (mask is None) == ("num_samples" not in batch)
        np.testing.assert_array_equal(there if mask is None else mask, there)
        held = [set(range(one, one + 32)) for one in batch["start"]]
        expected = np.array([
            [i == j or batch["utterance"][i] != batch["utterance"][j]
             or not held[i] & set(range(start + 2 * time, start + 2 * time + 2))
             for j, start in enumerate(batch["start"]) for time in range(t)]
            for i in range(b)
        ])  # fmt: skip
        every = [np.broadcast_to(x, (b, t)) for x in located]
        anchor = SoundPosition(*(x[:, :1] for x in every))
        candidate = SoundPosition(*(x.reshape(1, b * t) for x in every))
        allowed = negatives.outside_overlap(32).allows(anchor, candidate, 1)
        shown = np.tile(there.ravel(), (b, 1))
        np.testing.assert_array_equal(allowed[shown], expected[shown])
        num_excluded += (~expected[shown]).sum()
    assert num_excluded > 20
    for overlap in (False, True):
        rule = problem_of(tmp_path, lengths, **{"negatives.overlap": overlap}).plan.rule
        assert ("outside_overlap(32)" in rule.name) is not overlap


def test_padding_of_short_files_does_not_affect_the_loss(tmp_path):
    problem = problem_of(tmp_path, (50, 60, 20, 12, 70), **{"model.norm": "batch"})
    batches = map(problem.draw, range(50))
    batch = next(batch for batch in batches if (batch["num_samples"] < 32).sum() > 1)
    mask = np.arange(32)[:, None] < batch["num_samples"][:, None, None]
    garbled = np.where(mask, batch["x"], 1e3)

    @jax.jit
    def losses(xs):
        first = {**batch, "x": xs[0]}
        variables = problem.model.init(jax.random.key(0), first)

        def loss(x):
            outputs, _ = problem.model.apply(variables, {**first, "x": x}, True)
            given = problem.split_branches(outputs, batch)
            return objective_loss(problem.plan, {}, {}, given, jax.random.key(0))[:2]

        return jax.lax.map(loss, xs)

    (one, other), sums = losses(np.stack([batch["x"], garbled]))
    assert one == other
    exist = np.minimum(batch["num_samples"], 32) // 2
    np.testing.assert_array_equal(sums.anchors[0], [(exist - k).clip(0).sum() for k in (1, 2, 3)])


def test_processes_share_a_batch(monkeypatch):
    given, options = data.load_data(tiny(), str).train, {"window_steps": 8, "batch_size": 6}
    plans.check_shares(monkeypatch, data, lambda: data.make_windows(given, **options, seed=0))


def test_single_file_is_split_in_time_and_scaled_by_training_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_STEPS", 64)
    rng = np.random.default_rng(0)
    x = np.concatenate([3 * rng.normal(size=300) + 7, 9 * rng.normal(size=100) + 50])
    write(tmp_path, "x.npy", x)

    def load(**settings):
        return data.load_data(configure(tmp_path, **{"data.test_fraction": 0.25, **settings}), str)

    made = load()
    assert (made.train.pieces, made.test.pieces) == (((0, 0, 300),), ((0, 300, 100),))
    train, test = made.train.read(0), made.test.read(0)
    assert abs(train.mean()) < 1e-6
    assert train.std() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(test[:, 0], (x[300:] - x[:300].mean()) / x[:300].std(), rtol=1e-5)
    read = load(**{"data.standardize": False}).train.read(0)
    np.testing.assert_array_equal(read[:, 0], x[:300].astype(np.float32))
    with pytest.raises(UserError, match=r"data\.window_steps 200"):
        load(**{"data.window_steps": 200})


def write_subjects(folder, layout, subjects="abcdef", sessions=3):
    rng = np.random.default_rng(0)
    for subject, session in itertools.product(subjects, range(sessions)):
        name = layout.format(subject=subject, session=session)
        write(folder, name, rng.normal(size=(64, 1)))


def subjects_of(part, made):
    return {made.groups[file] for file, *_ in part.pieces}


@pytest.mark.parametrize(("level", "layout", "folder", "refused"), [
    (1, "{subject}/x/{session}.npy", "a", "one group, x"),
    (2, "visit{session}/{subject}/x.npy", "visit0", "data.group_level is 2"),
])  # fmt: skip
def test_groups_are_not_divided_between_splits(tmp_path, level, layout, folder, refused):
    write_subjects(tmp_path, layout, sessions=2)
    settings = {"data.group_level": level, "data.test_fraction": 0.3}
    tested, logged = set(), []
    for seed in range(5):
        made = data.load_data(configure(tmp_path, **settings, **{"seed": seed}), logged.append)
        train, test = subjects_of(made.train, made), subjects_of(made.test, made)
        assert train | test == set("abcdef")
        assert not train & test
        assert (len(test), len(made.test.pieces)) == (2, 4)
        tested |= test
    assert len(tested) > 2, "drawn by the seed"
    assert "2 of the 6 groups" in logged[0]
    with pytest.raises(UserError, match=refused):
        data.load_data(configure(tmp_path / folder, **settings), str)


def test_split_lists_name_files_or_folders(tmp_path):
    write_subjects(tmp_path, "{subject}/{subject}{session}.npy", "abc")
    lists = {"data.train_list": str(tmp_path / "a.txt"), "data.test_list": str(tmp_path / "b.txt")}

    def load(train, test, **settings):
        for path, text in zip(lists.values(), (train, test), strict=True):
            pathlib.Path(path).write_text(text)
        return data.load_data(configure(tmp_path, **lists, **settings), str)

    made = load("a\nb/b1.npy\n", "c/\nb2\n")
    known, parts = made.train.sequences.names, (made.train, made.test)
    names = [{known[file] for file, *_ in part.pieces} for part in parts]
    assert names == [{"a/a0", "a/a1", "a/a2", "b/b1"}, {"c/c0", "c/c1", "c/c2", "b/b2"}]
    assert not made.train.sequences.skipped, "the lists are not data"
    for train, test, settings, words in (
        ("a\n", "a/a1\n", {}, "a/a1"), ("b/b1\n", "b/b2\n", {"data.group_level": 1}, "b is in"),
        ("a\n", "nobody\n", {}, "nobody"), ("a\n", "\n", {}, "longer than every test file"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            load(train, test, **settings)


def test_files_with_equal_values_are_used_once(tmp_path):
    rng, logged = np.random.default_rng(0), []
    for number in range(6):
        x = rng.normal(size=(64, 2))
        write(tmp_path, f"{number}/rest.npy", x.astype(np.float32))
        write(tmp_path, f"{number}/copy.csv", x, stage=np.arange(64) % 2)
        write(tmp_path, f"{number}/again/rest.npz", np.asfortranarray(x))
    write(tmp_path, "flat.npy", np.full((64, 2), 0.5))
    write(tmp_path, "huge.npy", 1e300 * rng.normal(size=(64, 2)))
    settings = {"data.channels": 2, "data.test_fraction": 0.4, "data.step_label": "stage"}
    made = data.load_data(configure(tmp_path, **settings), logged.append)
    assert (len(made.train.pieces), len(made.test.pieces)) == (4, 3)
    parts = made.train, made.test
    whole = [{part.read(i).round(4).tobytes() for i in range(len(part.pieces))} for part in parts]
    assert len(whole[0] | whole[1]) == 7
    assert not whole[0] & whole[1]
    kept = [file for part in parts for file, *_ in part.pieces]
    assert sum((made.step_labels[file] >= 0).any() for file in kept) == 6
    skipped = dict(made.train.sequences.skipped)
    assert sum("copy" in reason for reason in skipped.values()) == 12
    assert "float32" in skipped["huge.npy"]
    assert "12 copies" in logged[0]
    assert "1 flat files kept (flat)" in logged[0]
    embedded = files.read_sequences(tmp_path, 2, step_label="stage").names
    assert len(embedded) == 19, "all of them can be embedded"
    with pytest.raises(UserError, match=r"1 of 20 files .* huge\.npy"):
        data.load_data(configure(tmp_path, **settings, **{"data.max_skipped_fraction": 0.01}), str)


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_array_size_is_checked_before_reading(tmp_path, monkeypatch, form):
    monkeypatch.setattr(files, "MAX_ARRAY_BYTES", 10**5)
    if form == "npz":
        np.savez_compressed(tmp_path / "x.npz", x=np.zeros((10**5, 1)))
        monkeypatch.setattr(files.np, "load", None)
    else:
        write(tmp_path, "x.parquet", np.zeros((10**5, 1)))
    with pytest.raises(UserError, match=r"above the limit of 0\.0001 GB"):
        files.read_sequences(tmp_path, 1)


def test_parquet_index_is_not_a_channel(tmp_path):
    values, stage = np.arange(10.0).reshape(5, 2), ["a", "b", "a", "b", "b"]
    frame = pd.DataFrame(values, index=pd.Index(list("vwxyz"), name="time"), columns=["p", "q"])
    frame.assign(stage=stage).to_parquet(tmp_path / "x.parquet")
    bare = pyarrow.table({"p": values[:, 0], "q": values[:, 1], "stage": stage})
    parquet.write_table(bare, tmp_path / "y.parquet")
    for name in "xy":
        found, labels = files.read_file(tmp_path / f"{name}.parquet", "stage")
        np.testing.assert_array_equal(found, values)
        assert labels.tolist() == stage
    with pytest.raises(UserError, match=r"column stage has type \w*string"):
        files.read_file(tmp_path / "x.parquet")


def test_file_and_step_labels(tmp_path):
    for number in range(6):
        stage = np.arange(64) // 16
        write(tmp_path, f"{'ab'[number % 2]}/{number}.npz", np.zeros((64, 1)), stage=stage)
    settings = {"data.file_label": "folder", "data.step_label": "stage"}
    made = data.load_data(configure(tmp_path, **settings), str)
    assert (made.file_names, made.step_names) == (("a", "b"), ("0", "1", "2", "3"))
    labels = series_probes.labels_of("files", made, made.test, 16)
    is_b = [made.train.sequences.names[file][0] == "b" for file, *_ in made.test.pieces]
    assert [one.tolist() for one in labels] == [[int(one)] * 4 for one in is_b]
    assert series_probes.labels_of("steps", made, made.test, 16)[0].tolist() == [0, 1, 2, 3]


def test_file_labels_from_a_table(tmp_path):
    for seed, name in enumerate(("a/0", "b/1", "a/2", "b/caf\u00e9")):
        write(tmp_path, f"{name}.npy", np.random.default_rng(seed).normal(size=(64, 1)))
    table, logged = tmp_path / "labels.txt", []
    settings = {"data.file_label": "table", "data.file_labels": str(table)}

    def load(text):
        table.write_text(text, "utf-8")
        made = data.load_data(configure(tmp_path, **settings), logged.append)
        assert made.file_names == ("high", "low")
        return dict(zip(made.train.sequences.names, made.file_labels.tolist(), strict=True))

    labels = {"a/0": 1, "a/2": -1, "b/1": 0, "b/caf\u00e9": 0}
    assert load('\ufeffa/0.npy,low\n1.NPY,"high"\n  \n\nb/cafe\u0301,high\n') == labels
    assert "1 files without a label" in logged[0]
    # Lines may have further folders.
    assert load("set/a/0.npy,low\nset/b/1.npy,high\nset/b/caf\u00e9.npy,high\n") == labels
    for text, mistake in (
        ("0,low\n\n0,high\n", "line 3: 0"), ("0,low\n1\n", "line 2: 1"), ("nobody,low\n", "none"),
        ("c/a/0,low\nd/a/0,high\n", "2 labels for files named a/0"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=mistake):
            load(text)


@pytest.mark.parametrize(("texts", "names"), [
    ("None walk  NA nan null N/A", "None walk  NA nan null N/A"), ("None None", "None None"),
    ("1 NA 02  nan", "1  2  "), ("TRUE  false", "True  False"), ("1 02 b", "1 02 b"),
])  # fmt: skip
def test_csv_step_labels_are_text_unless_all_are_numbers(tmp_path, texts, names):
    path = tmp_path / "a.csv"
    path.write_text("x,stage\n" + "".join(f"1,{text}\n" for text in texts.split(" ")))
    _, labels = files.read_file(path, "stage")
    assert [files.name_label(label) for label in labels] == names.split(" ")


@pytest.mark.parametrize(("text", "found"), [
    ("0,1\n1,2\n", [[1, 2]]),  # the header that pandas writes for arrays
    ("0,x\n1,2\n", [[1, 2]]), (",x\n0.5,2\n1,4\n", [[0.5, 2], [1, 4]]),
    ("x,y\n1,2,\n3,4,\n", [[1, 2], [3, 4]]),  # only the rows end in commas
    ("0.0,0.0\n1,2\n", "only numbers"), ("1,2\n1,2\n", "only numbers"),
    ("a;b\n1,5;2,5\n", "decimal commas"), ("a,b\n1,2,3\n4,5,6\n", "missing names"),
    ("% mV, 10 Hz\na,b\n1,2\n", "first 1 "), ("a device\nin mV\n\nch1,ch2\n1,2\n", "first 3 "),
    ("a,b,\n1,2,\n3,4,\n", "Unnamed: 2"), (",a,b\n0,1,2\n1,3,4\n", "index=False"),
])  # fmt: skip
def test_misleading_csv_columns_are_rejected(tmp_path, text, found):
    path = tmp_path / "a.csv"
    path.write_text(text)
    if isinstance(found, list):
        assert files.read_file(path)[0].tolist() == found
        return
    with pytest.raises(UserError, match=found):
        files.read_file(path, "stage")


@pytest.mark.parametrize(("task", "labels", "words"), [
    ("files", "aabbbc", r"1 test files .*got c; .* a, b\)"), ("files", "aabbb ", "test data lack"),
    ("files", "bbbbba", "all training files have the same label"), ("files", "ababab", ""),
    ("steps", " " * 6, "data.step_label"), ("steps", "aabbbc", r"64 test steps .*got c; .* a, b\)"),
])  # fmt: skip
def test_labels_missing_from_training_data_are_rejected(tmp_path, task, labels, words):
    for number, label in enumerate(labels):
        stage = {"stage": np.full(64, label)} if label.strip() else {}
        write(tmp_path, f"{number}.npz", np.zeros((64, 1)), **stage)
    settings = {"data.file_label": "none" if task == "steps" else "table",
                "data.step_label": "stage", "probe.tasks": (task,)}  # fmt: skip
    for name, lines in (
        ("file_labels", [f"{i},{one}" for i, one in enumerate(labels)]),
        ("train_list", "01234"), ("test_list", "5"),
    ):  # fmt: skip
        settings[f"data.{name}"] = str(tmp_path / name)
        (tmp_path / name).write_text("\n".join(lines))
    config = configure(tmp_path, **settings)
    made, accepted = data.load_data(config, str), contextlib.nullcontext()
    with pytest.raises(UserError, match=words) if words else accepted:
        series.probe_tasks(config, made)


def test_recorded_information_matches_the_synthetic_series(tmp_path):
    config = tiny(**{"data.num_files": 4000, "model.num_offsets": 3})
    x = np.stack(data.make_ar1(config).values)[..., 0]
    series.record(config, tmp_path, None)
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["offsets"] == [1, 2, 3]
    for k, information in zip(truth["offsets"], truth["mutual_information"], strict=True):
        r = np.corrcoef(x[:, 0], x[:, k])[0, 1]
        assert information == pytest.approx(-np.log(1 - r**2) / 2, abs=0.06)
    np.testing.assert_allclose(x.std(0), 1, atol=0.05)
    # At offset 1 latents share steps, and the information is unbounded.
    wide = with_settings(config, {"model.kernels": (8,), "model.strides": (4,)})
    series.record(wide, tmp_path, None)
    assert json.loads((tmp_path / "truth.json").read_text())["offsets"] == [2, 3]


def test_default_rule_depends_on_the_data(tmp_path, capsys):
    write_subjects(tmp_path, "{subject}/{session}.npy", [f"s{i}" for i in range(12)])  # 36 files
    for settings, rule in (
        ({"data.test_fraction": 0.05}, "batch"),
        ({"data.test_fraction": 0.05, "data.batch_size": 36}, "own_sequence"),
        ({"data.test_fraction": 0.05, "data.group_level": 1}, "own_sequence"),
        ({"negatives.queue": 64}, "batch"), ({"data.source": "ar1"}, "batch"),
        ({"loss.name": "sup_con", "loss.cosine": True}, "batch"),
    ):  # fmt: skip
        config = configure(tmp_path, **settings)
        assert series.choose_rule(config, data.load_data(config, str))[0] == rule, settings
    capsys.readouterr()
    for given, rule in (("auto", "own_sequence"), ("excluding_sequence", "excluding_sequence")):
        config = configure(tmp_path, **{"negatives.rule": given})
        problem = plans.problem_of(config, data.load_data(config, str))
        assert problem.plan.negatives.replace(",", "").split(" ")[0] == rule
        assert (f"rule={rule}" in capsys.readouterr().out) is (given == "auto")
        assert config.negatives.rule == given


@pytest.mark.parametrize("most", [20, 2])
def test_leave_one_out_holds_out_each_group(monkeypatch, most):
    seen = []

    def fake_scores(train, test, train_labels, test_labels, **how):
        (features,) = test.values()
        seen.append((train["c"], features))
        pairs = [*zip(features, test_labels, strict=True)]
        sums = [float((x[:, 0] == y)[y >= 0].sum()) for x, y in pairs]
        counts = [int((y >= 0).sum()) for y in test_labels]
        yield Score("steps", "d", "frame", "c", "linear", "accuracy", sum(sums) / sum(counts),
                    chance=0.5, outcomes=Outcomes(sums, counts, "x"))  # fmt: skip

    monkeypatch.setattr(series_probes, "probe_scores", fake_scores)
    monkeypatch.setattr(series_probes, "MAX_FOLDS", most)
    groups = ["a", "b", "a", "c", "d"]  # d is unlabelled
    labels = [np.zeros(4, int), np.array([0, 1, -1, -1]), np.ones(8, int), np.ones(2, int),
              np.full(3, -1)]  # fmt: skip
    features = [np.zeros((len(own), 1)) for own in labels]
    (found,) = series_probes.leave_one_out_scores("c", features, labels, groups, task="steps")
    wanted = [4 / 12, 1 / 2, 0] if most > 2 else [4 / 12, 0, 1 / 2]
    np.testing.assert_allclose(found.outcomes.sums, wanted)
    assert found.value == pytest.approx((4 / 12 + 1 / 2) / 3)
    assert found.unit == "group"
    assert found.low < found.value < found.high
    assert len(seen) == min(3, most)
    for train, test in seen:
        assert {id(x) for x in features[:4]} == {id(x) for x in (*train, *test)}
        assert len(train) + len(test) == 4


def test_groups_with_unique_labels_cannot_be_held_out(tmp_path):
    rng = np.random.default_rng(0)
    for number, stage in enumerate("aab"):
        write(tmp_path, f"{number}.npz", rng.normal(size=(64, 1)), stage=np.full(64, stage))
    settings = {"data.step_label": "stage", "probe.tasks": ("steps",), "data.test_fraction": 0.3}
    config = configure(tmp_path, **settings, **{"probe.leave_one_out": True})
    with pytest.raises(UserError, match="leave_one_out"):
        series_probes.check_groups("steps", data.load_data(config, str))
    write(tmp_path, "3.npz", rng.normal(size=(64, 1)), stage=np.full(64, "b"))
    series_probes.check_groups("steps", data.load_data(config, str))


def test_embedding_a_folder_equals_embedding_each_file_or_array(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "CHUNK_SAMPLES", 64)
    given = {"data.channels": 2, "data.rate_hz": 100.0, "model.width": 4, "model.context_width": 4}
    config = configure(tmp_path, **given)
    model = series.build_model(config)
    variables = jax.jit(model.init)(jax.random.key(0), {"x": np.zeros((1, 32, 2), "f")})
    pretrained = models.Pretrained(model.module, variables, series.describe_input(config))
    rng, function = np.random.default_rng(0), models.embed_with(pretrained)
    arrays = [rng.normal(size=(length, 2)) * [1, 50] + 9 for length in (41, 200)]
    for number, x in enumerate(arrays):  # the last is read in chunks
        write(tmp_path, f"{number}.npy", x)
    write(tmp_path, "other.npy", np.zeros((9, 3)))
    sequences, skipped = files.read_sequences(tmp_path, 2), []
    embedding = series.embed_files(pretrained, tmp_path, ["z", "c"], skipped)
    assert embedding.frame_seconds == {"z": 0.16, "c": 0.16}
    assert [name for name, _ in skipped] == ["other.npy"]
    for name, found, _ in embedding.features:
        number = sequences.names.index(name)
        x = sequences.read(number, 0, len(sequences.values[number]))
        wanted = jax.jit(lambda x: model.embed(variables, x))(x[None])
        own, alone = arrays[number], [y[None] for y in function(arrays[number])]
        for some in (wanted, alone, function(own[None]), function([own])):
            for one, expected in zip((found["z"], found["c"]), some, strict=True):
                assert len(one) == len(x) // 16
                np.testing.assert_allclose(one, expected[0][: len(one)], rtol=1e-4, atol=1e-5)
    for wrong, options in ((arrays[0].T, {}), (arrays[0], {"sample_rate_hz": 16_000})):
        with pytest.raises(UserError, match="sample_rate_hz" if options else "swap"):
            function(wrong, **options)
    lacking = {name: value for name, value in pretrained.input.items() if name != "standardize"}
    with pytest.raises(UserError, match="standardize"):
        models.embed_with(pretrained._replace(input=lacking))


@pytest.mark.whole
def test_audit_and_whole_run(tmp_path):
    command = ("experiments.train", "--config", "configs/series_ar1.py", *flags_of(TINY))
    run(*command, "--workdir", tmp_path / "audit", "--audit")
    assert not (tmp_path / "audit" / "metrics.jsonl").exists()
    assert [row.state for row in status.read_all(tmp_path)] == ["audited"]
    tmp_path /= "run"
    done = run(*command, "--workdir", tmp_path)
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"
    for name in ("audit.json", "truth.json", "report.html", "exported/README.md", "skipped.txt"):
        assert (tmp_path / name).exists(), name
    scores = {(s.task, s.features, s.unit): s for s in read_scores(tmp_path)}
    assert {*scores} == {("steps", "c", "frame"), ("steps", "raw", "frame")}
    assert scores["steps", "raw", "frame"].value > 0.9, "raw values reveal their sign"
    z, c = models.load(tmp_path)(np.zeros((1, 8, 1), np.float32))
    assert z.shape == c.shape == (1, 8, 4)
