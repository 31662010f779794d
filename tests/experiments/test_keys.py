"""Every key of every config changes what it names: a count, a shape, a value, or a call.

Nothing is trained. A key without a case, or whose case does not change, fails: so does a key that
nothing reads. The keys of models are in `test_model_keys`, of losses and negatives in
`test_objective`.
"""

import contextlib
import functools
import importlib
import importlib.util
import pathlib
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import soundfile
from PIL import Image

from configs import audio, image, series, text
from cpc import rl
from cpc.data import Images, augment, make_synthetic, phone_chain
from cpc.files import flatten
from cpc.rl.outside import OUTSIDE
from cpc.train import make_mesh
from cpc.types import CPCOutputs, Position, UserError
from experiments.command.config import with_settings
from experiments.kinds.audio import data as audio_data
from experiments.kinds.audio import heard as audio_prepare
from experiments.kinds.audio import probes as audio_probes
from experiments.kinds.audio import recognition as audio_recognition
from experiments.kinds.audio import tasks as audio_abx
from experiments.kinds.audio import tasks as audio_frames
from experiments.kinds.audio.data import Frames
from experiments.kinds.image import data as image_data
from experiments.kinds.image import probes as image_probes
from experiments.kinds.image import probes as image_supervised
from experiments.kinds.image.data import prepare, split_groups
from experiments.kinds.registry import CONTRASTIVE
from experiments.kinds.series import kind as series_modality
from experiments.kinds.series import probes as series_probes
from experiments.kinds.text import data as text_data
from experiments.kinds.text import kind as text_modality
from experiments.kinds.text import probes as text_probes
from experiments.sweep.cells import Cell
from experiments.sweep.jobs import check_cell
from experiments.training import loop, objective
from experiments.training import probes as training_probes
from experiments.training import step as training
from experiments.training.contrastive import interpret, make_probe
from experiments.training.objective import BranchOutputs
from experiments.training.probes import FeatureSet, ProbeContext
from experiments.training.records import probes_due
from tests import services
from tests.experiments.test_model_keys import OTHERS
from tests.experiments.test_model_keys import TABLES as MODELS
from tests.experiments.test_objective import COVERED
from tests.plans import plan_of, problem_of

CHANGES = object()


class Case(NamedTuple):
    """What is so of a config, with and without a value of a key."""

    value: Any
    effect: Any
    """effect(config) -> what the key names."""
    want: Any = CHANGES
    """What it is with the value; by default another than without."""
    beside: Any = types.MappingProxyType({})
    """Keys that are set both times."""


def same(a, b):
    a, b = jax.tree.flatten(a), jax.tree.flatten(b)
    return a[1] == b[1] and all(
        np.shape(x) == np.shape(y) and np.array_equal(x, y) for x, y in zip(a[0], b[0], strict=True)
    )


def check(case, config, key):
    config = with_settings(config, case.beside)
    before, after = case.effect(config), case.effect(with_settings(config, {key: case.value}))
    assert not same(before, after)
    assert case.want is CHANGES or same(after, case.want), after


@contextlib.contextmanager
def calls(module, **answers):
    """Replace functions of a module by ones that only record how they are called."""
    found = {}

    def recorder(name, answer):
        def record(*args, **options):
            found[name] = (args, options)
            return answer(*args, **options) if callable(answer) else answer

        return record

    with pytest.MonkeyPatch.context() as patch:
        for name, answer in answers.items():
            patch.setattr(module, name, recorder(name, answer))
        yield found


# What all kinds share, shown of a series.


def small_series():
    config = series.get_config()
    config.data.num_files, config.data.window_steps, config.data.batch_size = 10, 8, 4
    config.model.width = config.model.context_width = 4
    config.model.num_offsets = 2
    config.num_steps, config.optim.warmup_steps = 100, 10
    config.eval_every = config.save_every = 10
    return config


def series_problem(config):
    return problem_of(config, series_modality.load_data(config, str))


def is_apart(problem):
    """Whether windows that share some sound are no negatives of each other."""
    return "outside_overlap" in problem.plan.rule.name


def of_fit(name):
    """An option with which the loop is called."""

    def effect(config):
        state = types.SimpleNamespace(params={"model": 0}, ema=None, extra={}, step=0)
        with calls(
            training, make_step=(state, None, None), make_evaluation=None, run_training=(state, "")
        ) as found:
            training.train(pathlib.Path(), series_problem(config), None, make_mesh(1))
        made = found["run_training"][0][2]
        with calls(loop, prefetch=()) as found:
            made.batches(0)
        launches = {"launches": found["prefetch"][0][2], **found["prefetch"][1]}
        return {**made._asdict(), **made.cadence._asdict(), **launches}[name]

    return effect


def of_step(function, name):
    """An option with which a part of the step is made."""

    def effect(config):
        with calls(
            training,
            make_optimizer=(None, None),
            make_loss=None,
            make_state=jnp.zeros(()),
            make_train_step=None,
            make_launch=None,
            jit_step=None,
        ) as found:
            training.make_step(series_problem(config), make_mesh(1))
        return found[function][1][name]

    return effect


def num_parts(config):
    """How many parts of a batch the model is applied to, one at a time."""
    return traced(config, training, "apply_in_parts")[4]


def rate_of_the_slow_encoder(config):
    found = traced(config, optax, "incremental_update")
    return found[2] if found else None


def traced(config, module, name):
    """What a function is called with as a step is traced."""
    problem = series_problem(config)
    record = calls(module, **{name: getattr(module, name)})
    with record as found, calls(training, init_state=jnp.zeros(())):
        training.make_state(problem, training.make_loss(problem), None)
    return found[name][0] if found else ()


SHARED = {
    "num_steps": Case(70, of_fit("num_steps"), 70),
    "steps_per_launch": Case(5, of_fit("steps_per_launch"), 5),
    "log_every": Case(7, of_fit("log_every"), 7),
    "eval_every": Case(20, of_fit("eval_every"), 20),
    "save_every": Case(20, of_fit("save_every"), 20),
    "logger": Case(
        "trackio",
        services.services_of,
        [("init", (), None), ("log", ({"test/bound/1": 1.5},), 2), ("finish", (), None)],
    ),
    "data.num_threads": Case(5, of_fit("num_threads"), 5),
    "optim.name": Case("muon", of_step("make_optimizer", "name"), "muon"),
    "optim.learning_rate": Case(0.5, of_step("make_optimizer", "learning_rate"), 0.5),
    "optim.warmup_steps": Case(3, of_step("make_optimizer", "warmup_steps"), 3),
    "optim.schedule": Case("constant", of_step("make_optimizer", "schedule"), "constant"),
    "optim.clip_norm": Case(0.5, of_step("make_optimizer", "clip_norm"), 0.5),
    "optim.weight_decay": Case(0.5, of_step("make_optimizer", "weight_decay"), 0.5),
    "optim.ema_decay": Case(0.5, of_step("make_train_step", "ema_decay"), 0.5),
    "optim.accumulate": Case(2, num_parts, 2),
    "negatives.momentum": Case(0.75, rate_of_the_slow_encoder, 0.25),
}  # fmt: skip


@pytest.mark.parametrize("key", SHARED)
def test_a_shared_key_changes_what_it_names(key):
    check(SHARED[key], small_series(), key)


@pytest.mark.parametrize("kind", CONTRASTIVE)
def test_every_kind_trains_the_plan_of_its_config(kind, monkeypatch):
    draws = {"audio": "draw_windows", "image": "make_image_batches", "series": "make_windows"}
    draw = draws.get(kind, "make_runs")
    monkeypatch.setattr(f"experiments.kinds.{kind}.kind.{draw}", lambda *args, **options: None)
    config = {"audio": audio, "image": image, "series": series, "text": text}[kind].get_config()
    config.evaluate = {name: 0 for name in config.evaluate}
    plan, data = plan_of(config), types.SimpleNamespace(train=None, test=None)
    assert CONTRASTIVE[kind].make_problem(plan, data).plan is plan


@pytest.mark.parametrize("kind", CONTRASTIVE)
def test_every_key_has_a_case(kind):
    cases = {*SHARED, "kind", *TABLES[kind], *COVERED}
    cases |= {f"model.{key}" for key in MODELS[kind]} | {
        f"model.{key}" for one, key in OTHERS if one == kind
    }
    assert set(flatten(CONTRASTIVE[kind].KEYS)) == cases


@pytest.mark.parametrize("kind", CONTRASTIVE)
def test_every_word_of_probe_tasks_is_a_task(kind):
    tasks = importlib.import_module(f"experiments.kinds.{kind}.probes").TASKS
    assert {*tasks} == {*CONTRASTIVE[kind].KEYS["probe"]["tasks"].words}


CARDS = sorted(path.stem for path in pathlib.Path("configs").glob("*_*.py") if path.stem[0] != "_")


@pytest.mark.parametrize("card", CARDS)
def test_every_card_can_be_meant(card, monkeypatch):
    module = importlib.import_module(f"configs.{card}")
    config = module.get_config()
    library = config.environment.name.partition(":")[0] if config.kind == "rl" else ""
    if library in OUTSIDE and importlib.util.find_spec(library) is None:
        monkeypatch.setattr(rl, "make_environment", lambda name: rl.make_t_maze())
    assert f"cpc train --config {card}" in module.__doc__
    check_cell(config, Cell(card, {}))


@pytest.mark.parametrize("kind", CONTRASTIVE)
def test_the_kind_is_checked(kind):
    config = {"audio": audio, "image": image, "series": series, "text": text}[kind].get_config()
    interpret(CONTRASTIVE[kind], config)
    config.kind = "smell"
    with pytest.raises(UserError, match="kind is 'smell'"):
        interpret(CONTRASTIVE[kind], config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optim.name": "schedule_free"}, "schedule_free has no schedule but a warm-up"),
        ({"optim.name": "rmsprop", "optim.weight_decay": 0.1}, "no decoupled weight decay"),
        (
            {"optim.name": "schedule_free", "optim.schedule": "constant", "optim.ema_decay": 0.9},
            "an average of its own",
        ),
        ({"optim.accumulate": 3}, "accumulate is 3 and data.batch_size is 8"),
        ({"optim.accumulate": 2, "model.norm": "batch"}, "a part of the batch at a time"),
        ({"steps_per_launch": 7}, "no multiple of the 7 steps of a launch"),
    ],
)
def test_a_step_that_cannot_be_is_refused_before_data_are_read(settings, message):
    """And before the run directory holds a config that the advice would not fit."""
    config = with_settings(audio.get_config(), {"data.batch_size": 8, **settings})
    with pytest.raises(UserError, match=message):
        interpret(CONTRASTIVE["audio"], config)


# Series


def drawn(config):
    batch = series_problem(config).draw(0)
    return batch["x"].shape, batch["x"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two folders of series, one with labels of steps, and one damaged file."""
    root = tmp_path_factory.mktemp("series")
    rng = np.random.default_rng(0)
    for number in range(6):
        folder = root / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        x = 3 + rng.normal(size=(20, 2)).astype("f")
        np.savez(folder / f"{number}.npz", x=x, stage=np.arange(20) % 3)
    (root / "a" / "bad.csv").write_text("x\nnan\n")
    (root / "table.txt").write_text("0,low\n1,high\n")
    (root / "train.txt").write_text("0\n2\n")
    (root / "test.txt").write_text("1\n")
    np.save(root / "b" / "one.npy", rng.normal(size=(20, 1)))
    global FILES  # the effects are made before the fixtures are
    FILES = root
    return root


FILES: Any = None
OF_FILES = {"data.source": "files", "data.channels": 2, "data.max_skipped_fraction": 1.0}


def of_files(get):
    """Something of the data that a folder holds; paths are below it."""

    def effect(config):
        config = with_settings(config, {
            f"data.{name}": str(FILES / config.data[name])
            for name in ("path", "file_labels", "train_list", "test_list")
            if config.data[name] or name == "path"
        })  # fmt: skip
        try:
            return get(series_modality.load_data(config, str))
        except UserError:
            return "refused"

    return effect


def names(data):
    return data.train.sequences.names


def trained(data):
    return [names(data)[file].rsplit("/")[-1] for file, *_ in data.train.pieces]


def due(config):
    """The steps at which an evaluation fits probes."""
    return [step for step in range(0, config.num_steps + 1, 10) if probes_due(config, step)]


def fits(module, config, data, get):
    """Something of each probe that is fitted, on features of a model that copies its input."""
    found = []

    def record(*args, **options):
        found.append(get(args, options))
        return []

    def embed(variables, x):
        z = x.reshape(*x.shape[:2], -1) if config.kind == "series" else x
        z = z[:, ::160, None] if config.kind == "audio" else z
        return z, 2 * z

    stride = {"audio": 160, "series": 1}[config.kind]
    encoder = types.SimpleNamespace(stride=stride, frames_around=(0, 0))
    model = types.SimpleNamespace(
        init=lambda rng, batch: {}, embed=embed, module=types.SimpleNamespace(encoder=encoder)
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("write_scores", "print_scores"):
            patch.setattr(training_probes, name, lambda *args: None)
        patch.setattr(audio_probes, "write_latest", lambda *args, **options: None)
        patch.setattr(module, "probe_scores", record)
        make_probe(CONTRASTIVE[config.kind], config, FOLDER, data, model)({}, 0)
    return found


#: Nothing is written.
FOLDER = pathlib.Path("nowhere")


def series_fits(get):
    return lambda config: fits(series_probes, config, series_modality.load_data(config, str), get)


def left_out(config):
    """Features of which each group is held out in turn."""
    found = []

    def record(name, *args, **options):
        found.append(name)
        return []

    with calls(series_probes, leave_one_out_scores=record):
        series_fits(option("task"))(config)
    return found


def features_of(args, options):
    return list(args[0])


def option(name):
    return lambda args, options: options[name]


def num_epochs(args, options):
    return options["updates"].num_epochs


def embedded(config):
    return series_modality.describe_input(config)


SMALL_FILES = {**OF_FILES, "data.path": "", "data.num_threads": 0}
TABLES: dict[str, dict[str, Case]] = {"series": {
    "seed": Case(1, drawn),
    "data.source": Case("files", of_files(names), beside=SMALL_FILES | {"data.source": "ar1"}),
    "data.path": Case("a", of_files(names), ("0", "2", "4"), SMALL_FILES),
    "data.channels": Case(1, of_files(names), ("b/one",),
                          SMALL_FILES | {"data.test_fraction": 0.5}),
    "data.rate_hz": Case(250.0, lambda c: embedded(c)["rate_hz"] or 0, 250.0),
    "data.standardize": Case(False, of_files(
        lambda data: bool(abs(data.train.read(0).mean()) > 1)), True, SMALL_FILES),
    "data.step_label": Case(
        "stage", of_files(lambda data: data.step_names), ("0", "1", "2"), SMALL_FILES),
    "data.file_label": Case("folder", of_files(lambda data: data.file_names), ("a", "b"),
                            SMALL_FILES),
    "data.file_labels": Case("table.txt", of_files(lambda data: data.file_labels.tolist()),
                             beside=SMALL_FILES | {"data.file_label": "table"}),
    "data.group_level": Case(
        1, of_files(lambda data: sorted(set(data.groups))), ["a", "b"], SMALL_FILES),
    "data.train_list": Case("train.txt", of_files(trained), ["0", "2"],
                            SMALL_FILES | {"data.test_list": "test.txt"}),
    "data.test_list": Case("test.txt", of_files(trained), ["0", "2"],
                           SMALL_FILES | {"data.train_list": "train.txt"}),
    "data.test_fraction": Case(0.5, of_files(lambda data: len(data.test.pieces)), 3, SMALL_FILES),
    "data.window_steps": Case(4, lambda c: drawn(c)[0], (4, 4, 1)),
    "data.correlation": Case(0.1, drawn),
    "data.num_files": Case(12, lambda c: len(problem_data(c).train.sequences.names), 12),
    "data.batch_size": Case(6, lambda c: drawn(c)[0], (6, 8, 1)),
    "data.max_skipped_fraction": Case(0.0, of_files(names), "refused", SMALL_FILES),
    "negatives.overlap": Case(True, lambda c: is_apart(series_problem(c)), False),
    "evaluate.num_windows": Case(9, lambda c: series_problem(c).held_out.number, 3),
    "probe.tasks": Case((), series_fits(option("task")), []),
    "probe.features": Case(("z", "raw"), series_fits(features_of), [["z"], ["raw"]]),
    "probe.hidden_width": Case(5, series_fits(option("hidden_widths")), [(0, 5)] * 4),
    "probe.num_epochs": Case(7, series_fits(num_epochs), [7] * 4),
    "probe.leave_one_out": Case(True, left_out, ["c", "z", "raw", "random c"]),
    "probe.every": Case(20, due, [0, 20, 40, 60, 80]),
}}  # fmt: skip


def problem_data(config):
    return series_modality.load_data(config, str)


@pytest.mark.parametrize("key", TABLES["series"])
def test_a_key_of_series_changes_what_it_names(key, files):
    check(TABLES["series"][key], small_series(), key)


# Text


def small_text():
    config = text.get_config()
    config.data.source, config.data.num_documents, config.data.max_vocabulary = "grammar", 20, 60
    config.data.run_sentences, config.data.max_words, config.data.batch_size = 6, 10, 4
    config.data.block_sentences = 10
    config.model.width = config.model.context_width = config.model.embedding_width = 4
    config.model.num_offsets, config.probe.features = 2, ("z",)
    config.num_steps, config.optim.warmup_steps, config.eval_every = 100, 10, 10
    return config


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two texts, a damaged one, and word vectors; packs of them go to a folder of their own."""
    root = tmp_path_factory.mktemp("texts")
    (root / "in").mkdir()
    (root / "in" / "one.txt").write_text("The cat. The dog\nsat. " * 40)
    (root / "in" / "bad.txt").write_bytes(b"\xff")
    (root / "two.txt").write_text("One two. Two one. " * 40)
    (root / "vectors.txt").write_text("commona 1 0\ncommonb 0 1\nnew 1 1\n")
    global TEXTS
    TEXTS = root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPC_DATA", str(root / "cache"))
        yield root


TEXTS: Any = None
OF_TEXTS = {"data.source": "files", "data.path": "in", "data.max_skipped_fraction": 0.5}


def of_texts(get):
    """Something of the text that files hold; paths are below the fixture's folder."""

    def effect(config):
        config = with_settings(config, {"data.path": str(TEXTS / config.data.path)})
        try:
            return get(text_data.read_corpus(config, str))
        except UserError:
            return "refused"

    return effect


def text_drawn(config):
    batch = problem_of(config, text_data.load_data(config, str)).draw(0)
    return batch["x"].shape, batch["x"]


def parts_of_text(config):
    made = text_data.load_data(config, str)
    return [len(part.sentence_starts) - 1 for part in (made.train, made.test)]


def asked(get):
    """Something of how the probes of a text are fitted; get(config, data, model, variables)."""

    def effect(config):
        made, model = text_data.load_data(config, str), text_modality.build_model(config)
        variables = model.init(jax.random.key(0), {"x": jnp.zeros((1, 6, 10), jnp.int32)})
        return get(config, made, model, variables)

    return effect


def tasks_asked(config):
    return [task.name for task in text_probes.probe_tasks(config, text_data.load_data(config, str))]


def probed(config, made, model, variables):
    """The scores of the one task of a text."""
    context = ProbeContext(config, made, model, variables, FOLDER, 0, FOLDER.joinpath)
    (task,) = text_probes.probe_tasks(config, made)
    sets = text_probes.feature_sets(context, [task])
    return [score for features in sets for score in task.answer(context, features)]


def folds(config, made, model, variables):
    made = made._replace(tasks={"movies": (("a b", "b c") * 20, np.arange(40) % 2)})
    fields = {"items": np.arange(2), "correct": np.ones(2), "l2s": (1.0,), "num_unconverged": 0}
    answer = types.SimpleNamespace(**fields)
    with calls(text_probes.evaluate, cross_validate=answer) as found:
        probed(with_settings(config, {"probe.tasks": ("movies",)}), made, model, variables)
    return found["cross_validate"][1]["num_folds"]


def num_snippets(config):
    rows = {name: [("x", 1.0)] * 9 for name in ("movies", "products", "newspaper")}
    with calls(text_data, read_snippets=rows):
        return len(text_data.read_tasks(config, str)["movies"][0])


def vectors_found(config, made, model, variables):
    if config.probe.word_vectors:
        config = with_settings(config, {"probe.word_vectors": str(TEXTS / "vectors.txt")})
    return len(text_probes.widen(config, made, model, variables)[0])


def words_of(corpus):
    return corpus.vocabulary.words


NEXT = {"probe.tasks": ("next",)}
TABLES["text"] = {
    "seed": Case(1, text_drawn, beside=NEXT),
    "data.source": Case("files", lambda c: words_of(text_data.read_corpus(
        with_settings(c, {"data.path": str(TEXTS / "two.txt")}), str)), ("<unk>", "one", "two")),
    "data.path": Case("two.txt", of_texts(words_of), ("<unk>", "one", "two"), OF_TEXTS),
    "data.form": Case("lines", of_texts(lambda c: len(c.sentence_starts)), 42, OF_TEXTS),
    "data.lowercase": Case(False, of_texts(words_of), beside=OF_TEXTS),
    "data.min_count": Case(60, of_texts(words_of), "refused", OF_TEXTS),
    "data.max_vocabulary": Case(2, of_texts(lambda c: len(words_of(c))), 3, OF_TEXTS),
    "data.max_skipped_fraction": Case(0.1, of_texts(words_of), "refused", OF_TEXTS),
    "data.run_sentences": Case(5, lambda c: text_drawn(c)[0], (4, 5, 10), NEXT),
    "data.max_words": Case(5, lambda c: text_drawn(c)[0], (4, 6, 5), NEXT),
    "data.batch_size": Case(6, lambda c: text_drawn(c)[0], (6, 6, 10), NEXT),
    "data.test_fraction": Case(0.5, parts_of_text, beside=NEXT),
    "data.block_sentences": Case(25, parts_of_text, beside=NEXT),
    "data.num_documents": Case(30, lambda c: sum(parts_of_text(c)), 1500, NEXT),
    "data.order": Case(0.1, text_drawn, beside=NEXT),
    "evaluate.num_runs": Case(9, lambda c: problem_of(
        c, text_data.load_data(c, str)).held_out.number, 3, NEXT),
    "probe.tasks": Case(("genre", "next"), tasks_asked, ["genre", "next"]),
    "probe.features": Case(("mean",), asked(lambda *args: [
        one.features for one in probed(*args)]), ["mean"], NEXT),
    "probe.word_vectors": Case("vectors.txt", asked(vectors_found), 42, NEXT),
    "probe.num_folds": Case(4, asked(folds), 4, NEXT),
    "probe.max_sentences": Case(5, num_snippets, 5),
    "probe.every": Case(20, due, [0, 20, 40, 60, 80]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("key", TABLES["text"])
def test_a_key_of_text_changes_what_it_names(key, texts):
    check(TABLES["text"][key], small_text(), key)


# Audio


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Two folders of two speakers each, lists, an alignment, and a file that is no audio."""
    root = tmp_path_factory.mktemp("clips")
    rng = np.random.default_rng(0)
    for number in range(12):
        folder = root / "clips" / f"part{number % 2}" / f"speaker{number % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / f"u{number}.wav", 0.1 * rng.normal(size=4800), 16_000)
    (root / "clips" / "part0" / "speaker0" / "bad.wav").write_bytes(b"?")
    labels = " ".join("01"[i % 2] for i in range(30))
    (root / "phones.txt").write_text("".join(f"u{i} {labels}\n" for i in range(12)))
    (root / "toy.item").write_text("u0 0 0.1 a b c d\n")
    (root / "train.txt").write_text("u0\nu1\n")
    (root / "test.txt").write_text("u2\nu3\nu4\n")
    global FILES
    FILES = root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPC_DATA", str(root / "cache"))
        yield root


def small_audio():
    config = audio.get_config()
    config.data.source, config.data.path = "folder", "clips"
    config.data.window_samples, config.data.batch_size = 1600, 4
    config.data.max_skipped_fraction = 1.0
    config.num_steps = 100
    config.eval_every = 10
    config.evaluate.num_windows = 0
    return config


def of_clips(get):
    def effect(config):
        places = ("path", "train_list", "test_list", "phones", "item_file")
        config = with_settings(config, {
            f"data.{name}": str(FILES / config.data[name]) for name in places if config.data[name]
        })  # fmt: skip
        try:
            return get(config, audio_data.load_data(config, str))
        except UserError:
            return "refused"

    return effect


def loaded(name):
    return of_clips(lambda config, data: sorted(getattr(data.train, name)))


def problem_of_clips(get):
    return of_clips(lambda config, data: get(problem_of(config, data)))


def from_tfds(config):
    with calls(audio_data.data, read_librispeech_tfds=None, pack=made_up().recordings) as found:
        audio_data.load_data(with_settings(config, {"data.source": "librispeech_tfds"}), str)
    return found["read_librispeech_tfds"][0][1]


@functools.cache
def made_up():
    return make_synthetic(
        num_speakers=3, utterances_per_speaker=8, seconds=3.0, chain=phone_chain(4), seed=0
    )


def audio_fits(get):
    made = made_up()
    phones = {"synthetic": audio_data.Phones(made.labels, made.label_names)}
    data = audio_data.AudioData(made.recordings, made.recordings, phones)
    return lambda config: fits(audio_frames, config, data, get)


def recognised(get):
    """Something of each CTC head that is trained on MFCC, or of the network trained whole."""

    def effect(config):
        config.probe.tasks, found = ("ctc",), []

        def train(config, features, start, draw, recipe, **options):
            made = get(start, draw(0), recipe)
            found.append(made)
            answers = options["num_classes"]
            return lambda x: np.zeros((len(x), x.shape[1] // 4 or 1, answers), np.float32), ""

        nothing = {"digest": lambda *args: ""}
        with calls(audio_recognition, train_on_labels=train), calls(audio_recognition, **nothing):
            scores = audio_fits(None)(config)
        return found or scores

    return effect


def of_task(task):
    return lambda args, options: len(args[2]) if options["task"] == task else None


def contexts_of(args, options):
    """The first contexts of the first utterance that a probe of c is trained on."""
    return [frames[0][:5, 0].tolist() for name, frames in args[0].items() if name == "c"]


BY_CTC = {"probe.features": ("mfcc",), "probe.ctc_minutes": (0.0,)}
TUNED = {"probe.features": ("tuned",), "probe.tasks": ("ctc",), "probe.ctc_minutes": (0.0,)}


def rates_by_layer(config):
    answer = lambda xs: [np.zeros((len(x) // 640, 5)) for x in xs]  # noqa: E731
    with calls(audio_recognition, fit_head=(answer, ""), digest="") as found:
        audio_fits(None)(config)
    return found["fit_head"][0][1].layer_decay


def decoders_of(config):
    config.probe.tasks = ("ctc",)
    answer = lambda x: np.zeros((len(x), x.shape[1] // 4 or 1, 5), np.float32)  # noqa: E731
    with calls(audio_recognition, train_on_labels=(answer, "")):
        made = made_up()
        phones = {"synthetic": audio_data.Phones(made.labels, made.label_names)}
        data = audio_data.AudioData(made.recordings, made.recordings, phones)
        (question,) = audio_recognition.recognition_tasks(config, data)
        features = {name: np.zeros((300, 2)) for name in made.recordings.names}
        model = types.SimpleNamespace()
        context = ProbeContext(config, None, model, {}, FOLDER, 0, FOLDER.joinpath)
        scores = list(question.answer(context, FeatureSet("mfcc", Frames(features, 160))))
    return {score.method for score in scores}


def last_frame(config):
    config.probe.tasks, config.probe.features = ("abx",), ("mfcc",)
    with calls(audio_abx, abx_scores=[]) as found:
        audio_fits(None)(config)
    return found["abx_scores"][0][-1]


ONE_SPEAKER = problem_of_clips(
    lambda problem: max(len(set(problem.draw(i)["speaker"].tolist())) for i in range(4))
)


def augmented(config):
    """The calls that augment a batch in training."""
    batch = {"x": jnp.zeros((4, 1600), jnp.int16), "scale": jnp.ones(4), "speaker": jnp.zeros(4)}
    with calls(audio_prepare, unpack=batch, augment_sound=batch["x"]) as found:
        made = audio_prepare.prepare(config, batch, jax.random.key(0), True)
    return sorted(made), [found[name][0][2:] for name in found if name == "augment_sound"]


def offsets(config):
    return plan_of(config).geometry.branches[0].offsets


def is_best(config):
    """How `acpc_loss` is called."""
    plan = plan_of(config)
    outputs = CPCOutputs(jnp.zeros((4, 8, 2)), jnp.zeros((4, 8, 2)), jnp.zeros((4, 8, 2, 2)))
    branch, sums = BranchOutputs(outputs, Position.grid(4, 8)), [jnp.zeros(2)]
    with calls(objective, acpc_loss=(jnp.zeros(()), sums, jnp.zeros(2))) as found:
        objective.objective_loss(plan, {}, {}, [branch], jax.random.key(0))
    return found["acpc_loss"][1]["best"]


def by(*effects):
    return {"augment.side": "past", "augment.effects": effects}


TABLES["audio"] = {
    "augment.side": Case("past", augmented),
    "augment.effects": Case(("dropout",), augmented, beside={"augment.side": "past"}),
    "augment.pitch_cents": Case(50.0, augmented, beside=by("pitch")),
    "augment.snr_low_db": Case(-10.0, augmented, beside=by("noise")),
    "augment.snr_high_db": Case(60.0, augmented, beside=by("noise")),
    "augment.reverb_seconds": Case(0.1, augmented, beside=by("reverb")),
    "augment.band_hz": Case(4000.0, augmented, beside=by("band_reject")),
    "augment.dropout_ms": Case(20.0, augmented, beside=by("dropout")),
    "seed": Case(1, problem_of_clips(lambda problem: problem.draw(0)["x"])),
    "data.source": Case("synthetic", loaded("speakers")),
    "data.path": Case("clips/part0", loaded("speakers")),
    "data.split": Case("test_clean", from_tfds, "test_clean"),
    "data.speaker_level": Case(2, loaded("speakers")),
    "data.train_list": Case("train.txt", loaded("names"), ["u0", "u1"],
                            {"data.test_list": "test.txt"}),
    "data.test_list": Case("test.txt", loaded("names"), ["u0", "u1"],
                           {"data.train_list": "train.txt"}),
    "data.test_fraction": Case(0.6, of_clips(lambda config, data: len(data.test))),
    "data.phones": Case("phones.txt", of_clips(lambda config, data: list(data.phones)),
                        ["phones"]),
    "data.item_file": Case("toy.item", of_clips(lambda config, data: list(data.items)),
                           ["toy.item"]),
    "data.window_samples": Case(3200, problem_of_clips(lambda p: p.draw(0)["x"].shape), (4, 3200)),
    "data.one_speaker": Case(True, ONE_SPEAKER, 1),
    "negatives.overlap": Case(True, problem_of_clips(is_apart), False),
    "loss.align_to": Case(3, offsets, (2, 3), {"model.num_offsets": 2}),
    "loss.align_by": Case("best", is_best, True, {"loss.align_to": 4, "model.num_offsets": 2}),
    "data.batch_size": Case(6, problem_of_clips(lambda p: p.draw(0)["x"].shape), (6, 1600)),
    "data.max_skipped_fraction": Case(0.0, loaded("names"), "refused"),
    "evaluate.num_windows": Case(9, problem_of_clips(lambda problem: (
        problem.held_out.number if problem.held_out else 0)), 3),
    "probe.tasks": Case(("speakers",), audio_fits(option("task")), ["speakers"] * 3),
    "probe.features": Case(("z",), audio_fits(features_of), [["z"]] * 2),
    "probe.delay": Case(2, audio_fits(contexts_of)),
    "probe.hidden_width": Case(0, audio_fits(option("hidden_widths")), [(0,)] * 6),
    "probe.num_epochs": Case(7, audio_fits(num_epochs), [7] * 6),
    "probe.hours": Case(0.005, audio_fits(of_task("phones")), [6, None] * 3),
    "probe.minutes_per_speaker": Case(0.1, audio_fits(of_task("speakers")), [None, 6] * 3),
    "probe.lose_last_frame": Case(True, last_frame, True),
    "probe.layer_decay": Case(0.5, rates_by_layer, 0.5, TUNED),
    "probe.ctc_head": Case("lstm", recognised(lambda start, *_: list(start["params"])),
                           [["network", "lstm"]], BY_CTC),
    "probe.ctc_minutes": Case((0.1, 0.2), recognised(lambda _, batch, options: len(batch["x"])),
                              [8, 8], BY_CTC),
    "probe.ctc_steps": Case(7, recognised(lambda *args: args[2].num_steps), [7], BY_CTC),
    "probe.ctc_beam": Case(3, decoders_of, {"linear", "linear, beam 3"}, BY_CTC),
    "probe.every": Case(20, due, [0, 20, 40, 60, 80]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("key", TABLES["audio"])
def test_a_key_of_audio_changes_what_it_names(key, clips):
    check(TABLES["audio"][key], small_audio(), key)


# Images


@pytest.fixture(scope="module")
def pixels(tmp_path_factory):
    """Two splits of two classes each, of color images, and a file that is no image."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 4), ("other", 3)):
        for number in range(2 * count):
            folder = root / "one" / split / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            x = rng.integers(0, 256, (20, 20, 3), np.uint8)
            Image.fromarray(x).save(folder / f"{number}.png")
    (root / "one" / "train" / "a" / "bad.png").write_bytes(b"?")
    (root / "two").symlink_to(root / "one" / "other", target_is_directory=True)
    global FILES
    FILES = root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPC_DATA", str(root / "cache"))
        yield root


def small_image():
    config = image.get_config()
    config.data.source, config.data.path = "folder", "one"
    config.data.size, config.data.channels, config.data.batch_size = 20, 3, 4
    config.data.max_skipped_fraction = 1.0
    config.augment.crop, config.model.patch, config.model.stride = 16, 8, 8
    config.model.num_offsets = 1
    config.num_steps = 100
    config.eval_every = 10
    config.probe.fractions = (0.5, 1.0)
    config.probe.num_neighbours = config.probe.regions = 2
    return config


def of_images(get):
    def effect(config):
        config = with_settings(config, {"data.path": str(FILES / config.data.path)})
        try:
            return get(image_data.load_data(config, str))
        except UserError:
            return "refused"

    return effect


def image_problem(get):
    def effect(config):
        config = with_settings(config, {"data.path": str(FILES / config.data.path)})
        return get(problem_of(config, image_data.load_data(config, str)))

    return effect


def from_images_tfds(config):
    def read(root, name, split, **how):
        found.append(name)
        return types.SimpleNamespace(pixels=np.zeros((2, 8, 8, 1)), skipped=(), __len__=lambda: 2)

    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_data.data, "read_images_tfds", read)
        patch.setattr(image_data.data, "locate_images_tfds", lambda *_: [])
        with contextlib.suppress(TypeError, UserError):  # what is read here is no set of images
            config = with_settings(config, {"data.source": "tfds"})
            image_data.load_data(config, str)
    return found


def prepared(config):
    """The calls that prepare a batch: in training, and in evaluation."""
    x = jnp.zeros((2, 20, 20, 3), jnp.uint8)
    names = ("cut_for_evaluation", "crop_and_flip", "augment_patches", "jitter_patches")
    found = []
    for train in (True, False):
        with calls(augment, **dict.fromkeys(names, x)) as called:
            prepare(config, {"x": x}, jax.random.key(0), train)
        found.append({name: ([one for one in args if isinstance(one, int)], options)
                      for name, (args, options) in called.items()})  # fmt: skip
    return found


def option_of(function, name):
    """Of training."""
    return lambda config: prepared(config)[0][function][1][name]


def image_fits(get, *names):
    """Something of each call of some functions that probes are made with."""

    def effect(config):
        found = []

        def recorder(name, answer):
            def record(*args, **options):
                found.append(get(name, args, options))
                return answer(*args, **options)

            return record

        def answer_zeros(*args, **options):
            return lambda x: np.zeros((len(x), 2), np.float32)

        answers = {
            "fit_linear": lambda *args: (answer_zeros(), ""),
            "knn_predict": lambda train, labels, held, **how: np.zeros((len(held), 2)),
            "train_on_labels": lambda *args, **options: (answer_zeros(), ""),
        }
        model = types.SimpleNamespace(
            init=lambda rng, batch: {"params": {}},
            embed=lambda variables, x: (x.mean((3, 4)), x.mean((3, 4)) + 1),
        )
        load = of_images(lambda data: data)
        with pytest.MonkeyPatch.context() as patch:
            for name, answer in answers.items():
                wanted = not names or name in names
                homes = {"train_on_labels": image_supervised, "knn_predict": image_probes.evaluate}
                home = homes.get(name, image_probes)
                patch.setattr(home, name, recorder(name, answer) if wanted else answer)
            for name in ("write_scores", "print_scores"):
                patch.setattr(training_probes, name, lambda *args: None)
            make_probe(CONTRASTIVE["image"], config, FOLDER, load(config), model)({"params": {}}, 0)
        return found

    return effect


def rate_below(tx):
    """The rate of the layer below the head, of that of the head."""
    params = {"encoder": {"conv0": jnp.ones(1)}, "head": jnp.ones(1)}
    state = tx.init(params)
    for _ in range(3):  # the warm-up begins at 0
        found, state = tx.update(params, state, params)
    return round(float(found["encoder"]["conv0"][0] / found["head"][0]), 5)


def groups_tested(config):
    """How many of ten groups test."""
    images = Images(np.zeros((10, 2, 2, 1), np.uint8), np.zeros(10, np.int32), ("a",),
                    describe="/in/one/{}/x.png".format)  # fmt: skip
    return len(split_groups(config, [images] * 3)[-1])


ALL_TASKS = {"probe.tasks": ("few_labels",), "probe.features": ("z",)}
LINEAR = {"probe.tasks": ("linear",), "probe.features": ("z",)}
SUPERVISED = {"probe.tasks": ("supervised",)}
WIDTH = image_fits(lambda name, args, options: args[1].shape[1], "fit_linear")
COUNT = image_fits(lambda name, args, options: len(args[1]), "fit_linear")
TABLES["image"] = {
    "seed": Case(1, image_problem(lambda problem: problem.draw(0)["image"])),
    "data.source": Case("fashion_mnist", of_images(lambda data: len(data.train))),
    "data.path": Case("two", of_images(lambda data: len(data.train))),
    "data.name": Case("cifar10", from_images_tfds),
    "data.split": Case("other", of_images(lambda data: len(data.train)), 6),
    "data.probe_split": Case("other", of_images(lambda data: len(data.probe)), 6),
    "data.test_split": Case("other", of_images(lambda data: len(data.test)), 6),
    "data.group_level": Case(3, of_images(lambda data: 0), "refused"),
    "data.test_fraction": Case(0.5, groups_tested, 5, {
        "data.source": "folder", "data.path": "/in", "data.split": "one", "data.test_split": "one",
        "data.group_level": 2}),
    "data.size": Case(10, of_images(lambda data: data.train.pixels.shape[1:]), (10, 10, 3)),
    "data.channels": Case(1, of_images(lambda data: data.train.pixels.shape[1:]), (20, 20, 1)),
    "data.batch_size": Case(2, image_problem(lambda problem: problem.draw(0)["x"].shape[0]), 2),
    "data.max_skipped_fraction": Case(0.0, of_images(lambda data: len(data.train)), "refused"),
    "augment.crop": Case(8, lambda c: [prepared(c)[0]["crop_and_flip"][0],
                                       prepared(c)[1]["cut_for_evaluation"][1]["crop"]], [[8], 8]),
    "augment.grey": Case(True, lambda c: [
        one["cut_for_evaluation"][1]["grey"] for one in prepared(c)], [True, True]),
    "augment.jitter": Case(5, lambda c: prepared(c)[0].get("jitter_patches", ([],))[0], [5]),
    **{f"augment.{name}": Case(value, option_of("augment_patches", name), value)
       for name, value in (
        ("color_drop", 1.0), ("rotation_degrees", 30.0), ("shear", 0.3), ("elastic_pixels", 2.0),
        ("brightness", 0.5), ("contrast", 0.5))},
    "evaluate.num_images": Case(3, image_problem(lambda p: p.held_out.number), 1),
    "probe.tasks": Case(("knn",), image_fits(lambda name, args, options: name),
                        ["knn_predict"], {"probe.features": ("z",)}),
    "probe.features": Case(("pixels",), WIDTH, [20 * 20 * 3], {"probe.tasks": ("linear",)}),
    "probe.regions": Case(1, WIDTH, [3], LINEAR | {"probe.regions": 2}),
    "probe.solver": Case("lbfgs", image_fits(lambda name, args, options: args[0], "fit_linear"),
                         ["lbfgs"], LINEAR),
    "probe.num_images": Case(5, COUNT, [5], LINEAR),
    "probe.num_neighbours": Case(
        3, image_fits(lambda name, args, options: options["k"], "knn_predict"), [3],
        {"probe.tasks": ("knn",), "probe.features": ("z",)}),
    "probe.fractions": Case((1.0,), COUNT, [12], ALL_TASKS),
    "probe.num_subsets": Case(1, COUNT, [6, 12], ALL_TASKS),
    "probe.num_epochs": Case(
        100, image_fits(lambda name, args, options: args[4].num_steps, "train_on_labels"),
        [275], SUPERVISED),  # of 12 images one is held out
    "probe.layer_decay": Case(
        0.5, image_fits(lambda name, args, options: rate_below(args[4].tx), "train_on_labels"),
        [0.5, 1.0], {"probe.tasks": ("few_labels", "fine_tuned"), "probe.features": (),
                     "probe.fractions": (1.0,)}),
    "probe.every": Case(20, due, [0, 20, 40, 60, 80]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("key", TABLES["image"])
def test_a_key_of_images_changes_what_it_names(key, pixels):
    check(TABLES["image"][key], small_image(), key)


@pytest.mark.slow
def test_images_are_augmented_in_training_alone():
    """Cropped at random and mirrored, by the defaults too; evaluation takes the middle as it is."""
    x = {"x": jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 20, 20, 3), np.uint8))}
    seen, plain, again = (prepare(small_image(), x, jax.random.key(0), train)["x"]
                          for train in (True, False, False))  # fmt: skip
    assert not same(seen, plain)
    assert same(again, plain)
    assert not any(np.array_equal(one[..., ::-1, :], one) for one in np.asarray(seen))
