import json

import pytest
from ml_collections import ConfigDict

from configs import audio_synthetic, image_fashion_mnist, mi_consistency, mi_tasks
from cpc.files import flatten
from cpc.results import Score, write_scores
from cpc.train import make_mesh
from cpc.types import UserError
from experiments.command import run_dir
from experiments.command.config import with_settings
from experiments.sweep.__main__ import check_same_sweep
from experiments.sweep.cells import Cell, check_rank_by, keep_best, last_scores, make_cells, shorten
from experiments.sweep.jobs import Job, check_cell, run_jobs
from tests import commands


@pytest.fixture
def config():
    return audio_synthetic.get_config()


def names(cells):
    return [cell.name for cell in cells]


def test_the_product_of_grids_with_seeds(config):
    grids = ["negatives.rule=batch,own_sequence", "model.num_offsets=2, 4,8"]
    cells = make_cells(config, grids, [], 2)
    assert len(cells) == 2 * 3 * 2
    assert names(cells)[:3] == [
        "negatives.rule=batch,model.num_offsets=2,seed=0",
        "negatives.rule=batch,model.num_offsets=2,seed=1",
        "negatives.rule=batch,model.num_offsets=4,seed=0",
    ]
    assert cells[2].settings == {
        "negatives.rule": "batch", "model.num_offsets": 4, "seed": 0,
    }  # fmt: skip
    config.seed = 7
    assert names(make_cells(config, [], [], 2)) == ["base,seed=7", "base,seed=8"]


def test_single_cells_beside_the_grid(config):
    singles = ["", "model.norm=layer optim.learning_rate=1e-3", "two tasks: probe.tasks=()"]
    cells = make_cells(config, ["model.width=8"], singles, None)
    single = "model.norm=layer,optim.learning_rate=0.001"
    assert names(cells) == ["model.width=8", "base", single, "two_tasks"]
    assert cells[3].settings == {"probe.tasks": ()}
    assert names(make_cells(config, [], ["near:"], None)) == ["near"]
    assert names(make_cells(config, [], [], None)) == ["base"]
    # Names are fit for directories.
    grid = [f"{key}=1" for key in ("model.width", "model.context_width", "model.num_offsets")]
    grid += [f"loss.{key}=1.25" for key in ("bias", "prior", "concentration", "margin")]
    grid += [f"optim.{key}=0.125" for key in ("learning_rate", "clip_norm", "weight_decay")]
    cells = make_cells(config, grid, ["data.path=/a/b", "data.path=..", "../up: seed=1"], None)
    assert all("/" not in cell.name and not cell.name.startswith(".") for cell in cells)
    assert len(cells[0].name) <= 180
    assert len(set(names(cells))) == len(cells)


def test_cells_of_a_python_file(config, tmp_path):
    path = tmp_path / "cells.py"
    path.write_text(
        "GRID = {'probe.tasks': [('phones',), ()], 'data.path': ['a, b']}\n"
        "CELLS = {'near by': {'model.num_offsets': 1}, 'base': {}}\n"
    )
    cells = make_cells(config, [str(path)], ["x: model.width=8"], None)
    assert names(cells)[2:] == ["near_by", "base", "x"]
    assert cells[0].settings == {"probe.tasks": ("phones",), "data.path": "a, b"}
    for text, words in (("GRID = 1", "defines no cells"), ("1 / 0", "cannot be run .ZeroDiv")):
        path.write_text(text)
        with pytest.raises(UserError, match=words):
            make_cells(config, [str(path)], [], None)


@pytest.mark.parametrize(("key", "text", "value"), [
    ("model.width", "16", 16), ("optim.learning_rate", "1e-3", 1e-3),
    ("data.one_speaker", "true", True), ("data.path", "gs://a,b", "gs://a,b"),
    ("probe.tasks", "()", ()), ("probe.features", "('c','random_c')", ("c", "random_c")),
])  # fmt: skip
def test_values_have_the_configs_type(config, key, text, value):
    for form in (f"{key}={text}", f"--config.{key}={text}"):
        (cell,) = make_cells(config, [], [form], None)
        ((name, found),) = cell.settings.items()
        assert (name, found) == (key, value)
    assert type(found) is type(value)
    assert flatten(with_settings(config, {key: value}))[key] == value


@pytest.mark.parametrize(("grids", "singles", "seeds", "words"), [
    (["model.num_ofsets=2"], [], None, r"no key model\.num_ofsets; did you mean model\.num_off"),
    (["model=2"], [], None, "no key model;"), (["model.width"], [], None, "has no values"),
    (["model.width=8,"], [], None, "given '': it must be of type int"),
    (["model.width=1.5"], [], None, "given '1.5': it must be of type int, such as 64"),
    (["model.width=8", "model.width=16"], [], None, "model.width twice"),
    ([], ["model.width=8 model.width=16"], None, "model.width twice"),
    ([], ["model.width"], None, "sets nothing"),
    (["optim.learning_rate=1e-3,0.001"], [], None, "two cells have the name optim"),
    ([], ["..: model.width=8"], None, "has no letter or digit in its name"),
    (["seed=1,2"], [], 2, "beside --seeds"), ([], [], 0, "--seeds is 0"),
])  # fmt: skip
def test_mistakes(config, grids, singles, seeds, words):
    with pytest.raises(UserError, match=words):
        make_cells(config, grids, singles, seeds)


@pytest.mark.parametrize(("module", "key", "value", "words"), [
    (audio_synthetic, "negatives.rule", "bach", r"negatives\.rule is 'bach': choose one of batch"),
    (mi_tasks, "kind", "mi_stairs", "kind is 'mi_stairs'"),
    (mi_tasks, "num_steps", 7, "must divide num_steps"),
    (mi_consistency, "rows", (7, 3), "give numbers up to 28 that rise"),
])  # fmt: skip
def test_a_word_that_no_cell_knows_is_refused(module, key, value, words):
    with pytest.raises(UserError, match=f"the cell x: .*{words}"):
        check_cell(module.get_config(), Cell("x", {key: value}))
    check_cell(mi_tasks.get_config(), Cell("x", {"num_seeds": 3}))
    with pytest.raises(UserError, match="kind is None: choose one of audio, image"):
        check_cell(ConfigDict({"seed": 0}), Cell("x", {}))


def test_another_sweep_is_told_by_what_differs(tmp_path):
    here = {"config": {"model": {"width": 8}}, "cells": {"a": {"seed": 1}}, "rounds": [1, None]}
    check_same_sweep(here, here, tmp_path)
    other = {**here, "config": {"model": {"width": 4}}, "cells": {"a": {"seed": 2}, "c": {}}}
    with pytest.raises(UserError, match=r"model\.width is 4 there and 8 here") as error:
        check_same_sweep(other, here, tmp_path)
    assert all(f"the cell {name} is" in str(error.value) for name in "ac")
    with pytest.raises(UserError, match="rounds is"):
        check_same_sweep({**here, "rounds": [3, None]}, here, tmp_path)
    with pytest.raises(UserError, match="the cell a is 'absent'"):
        check_same_sweep({}, here, tmp_path)
    with pytest.raises(UserError, match="holds a reproduction, no sweep"):
        check_same_sweep({"reproduction": {}, "cells": {}}, here, tmp_path)


def finish(folder, step=4):
    (folder / "config.json").write_text(json.dumps({"seed": 0, "num_steps": 4}))
    (folder / "metrics.jsonl").write_text(
        json.dumps({"step": step, "split": "train", "num_steps": 4}) + "\n"
    )
    (folder / "report.html").write_text("")
    run_dir.record_state(folder, "finished" if step == 4 else "running")


@pytest.fixture
def jobs(tmp_path):
    return [Job(name, tmp_path / name, ["command", name]) for name in "abc"]


def run(jobs, launch, num_signals=lambda: 0):
    """Returns the names of the jobs that were started, and the number of comparisons."""
    started, compared = [], []

    def begin(wanted):
        def launch_one(job):
            started.append(job.name)
            job.log.write_text("first\n")
            return launch(job)

        return launch_one, 1

    run_jobs(jobs, begin, num_signals, lambda: compared.append(None))
    return started, len(compared)


def test_what_is_done_is_skipped_and_what_fails_is_tried_again(jobs, capsys):
    def breaks_once(job):
        if job.name == "b" and not job.folder.joinpath("again").exists():
            (job.folder / "again").write_text("")
            job.log.write_text("much\nerror: no such file; name another\nlast line\n")
            return 2
        finish(job.folder)
        return 0

    assert run(jobs, breaks_once) == (["a", "b", "c"], 3)
    failed = run_dir.read_state(jobs[1].folder)
    assert {name: failed[name] for name in ("state", "status", "error", "command")} == {
        "state": "failed", "status": 2, "error": "no such file; name another",
        "command": "command b",
    }  # fmt: skip
    assert "FAILED b: no such file; name another" in capsys.readouterr().out
    assert run(jobs, breaks_once) == (["b"], 1)
    assert not run_dir.read_failure(jobs[1].folder)
    assert run(jobs, breaks_once) == ([], 1)


def test_ends_that_are_no_end(jobs):
    """A status of 0 before the last step is a failure, except after a signal: nothing starts."""
    signals = []
    assert run(jobs, lambda job: signals.append(job) or 0, lambda: len(signals)) == (["a"], 1)
    assert not run_dir.read_failure(jobs[0].folder)
    run(jobs[1:2], lambda job: finish(job.folder, step=3) or 0)
    assert run_dir.read_state(jobs[1].folder)["error"] == "first"


@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_that_starts_is_no_longer_a_failed_one(tmp_path, config, monkeypatch, is_first):
    monkeypatch.setattr(run_dir, "is_first", lambda: is_first)
    (tmp_path / "config.json").write_text("{}")  # it failed before it read the data
    run_dir.record_state(tmp_path, "failed")
    with run_dir.open_run(str(tmp_path), config, make_mesh(1)):
        assert bool(run_dir.read_failure(tmp_path)) != is_first


@pytest.mark.parametrize(("code", "words", "error"), [
    (1, "step 50\n", "step 50"), (1, "\n", "it said nothing"),
    (-9, "step 50\n", "killed by SIGKILL; its last words: step 50"),
    (-50, "", "killed by signal 50"),
])  # fmt: skip
def test_the_error_is_of_the_last_start(jobs, code, words, error):
    def launch_one(job):
        with job.log.open("a") as log:
            log.write(words)
        return code

    jobs[0].folder.mkdir()
    jobs[0].log.write_text("error: of an earlier start\n")
    run_jobs(jobs[:1], lambda wanted: (launch_one, 1), lambda: 0, lambda: None)
    failure = run_dir.read_state(jobs[0].folder)
    assert (failure["status"], failure["error"]) == (code, error)


def scores_of(*values, task="phones", metric="accuracy", features="c", **options):
    """A score of a cell on each of several sets."""
    return [
        Score(task, f"set{i}", "frame", features, "linear", metric, v, step=4, **options)
        for i, v in enumerate(values)
    ]


def best_of(*found, task="phones"):
    """The names that go on, of cells named by letters with these scores, and the lines."""
    cells = [Cell("abcd"[i], {"model.width": i}) for i in range(len(found))]
    kept, lines = keep_best(cells, found, task, "c")
    return names(kept), lines


def test_the_best_third_goes_on_by_the_mean_of_seeds_and_data():
    cells = [
        Cell(f"{name},seed={seed}", {"model.width": width, "seed": seed})
        for width, name in enumerate("abcd")
        for seed in (0, 1)
    ]
    values = [(0.9, 0.2), (0.5, 0.6), (0.6, 0.6), (0.6, 0.6), (0.7, 0.6), (), (), ()]
    found = [scores_of(*own) for own in values]
    kept, lines = keep_best(cells, found, "phones", "c")
    # Two of four: b has 0.6, a 0.55; c lacks a seed and d both.
    assert names(kept) == ["a,seed=0", "a,seed=1", "b,seed=0", "b,seed=1"]
    assert lines == [
        "goes on: b,seed=0  phones of c, accuracy 60.0",
        "goes on: a,seed=0  phones of c, accuracy 55.0",
    ]
    kept, _ = keep_best(cells[:6], found[:6], "phones", "c")
    assert names(kept) == ["b,seed=0", "b,seed=1"]
    with pytest.raises(UserError, match="no cell has a score of phones for c"):
        best_of([], [])
    with pytest.raises(UserError, match="no cell has all scores"):
        keep_best(cells[4:6], found[4:6], "phones", "c")


def test_cells_are_ranked_by_one_metric_whose_direction_counts():
    # A cell that failed between two sets has no score on the harder one, and does not win.
    kept, lines = best_of(scores_of(0.8), scores_of(0.9, 0.3), scores_of(0.9, 0.4))
    assert kept == ["c"]
    assert lines[-1] == "ends: a  phones of c, 1 of 2 scores: it failed"
    less = {"task": "codes", "higher_is_better": False}
    more = {"task": "codes", "metric": "perplexity"}
    codes = [
        scores_of(a, **less) + scores_of(b, **more) for a, b in ((100.0, 10.0), (200.0, 900.0))
    ]
    kept, lines = best_of(*codes, [], task="codes")
    assert kept == ["a"]
    assert [line.split("  ")[0] for line in lines] == ["goes on: a", "ends: b"]
    near = [one._replace(method="knn") for one in scores_of(0.9)]
    assert best_of(near + scores_of(0.6), scores_of(0.7))[0] == ["b"]  # a linear probe first
    lower = scores_of(-0.25, task="similarity", metric="correlation")
    assert best_of(lower)[1] == ["goes on: a  phones of c, correlation -0.25"]


def test_scores_of_the_last_step_count(tmp_path):
    (tmp_path / "config.json").write_text('{"num_steps": 4}')
    early = scores_of(0.0, task="ABX")[0]._replace(step=2)
    near = scores_of(0.8, task="classes")[0]._replace(method="knn")
    write_scores(tmp_path, [*scores_of(0.3, 0.4, task="ABX"), early._replace(data="set3"), near])
    assert [score.value for score in last_scores(tmp_path, "abx", "c")] == [0.3, 0.4]
    assert [score.value for score in last_scores(tmp_path, "knn", "c")] == [0.8]
    assert last_scores(tmp_path, "abx", "z") == []


def test_rounds_take_a_third_of_a_cells_own_steps(config):
    cells = [Cell("a", {}), Cell("b", {"num_steps": 90})]
    config.num_steps = 100
    steps = [[cell.settings["num_steps"] for cell in shorten(config, cells, n)] for n in (2, 1, 0)]
    assert steps == [[12, 10], [34, 30], [100, 90]]


@pytest.mark.parametrize(("rank_by", "words"), [
    ("phones", r"--rank-by is phones: name one of probe\.tasks \(phones\)"),
    ("speakers/c", r"such as phones/z"), ("phones/mfcc", r"one of probe\.features \(z, c\)"),
])  # fmt: skip
def test_what_ranks_cells_is_probed(config, rank_by, words):
    config.probe.tasks, config.probe.features = ("phones",), ("z", "c")
    assert check_rank_by(config, None) == ("phones", "z")
    assert check_rank_by(config, "phones/c") == ("phones", "c")
    with pytest.raises(UserError, match=words):
        check_rank_by(config, rank_by)
    config.probe.tasks = ()
    with pytest.raises(UserError, match="has none"):
        check_rank_by(config, None)


def test_cells_are_ranked_by_what_they_learn(config):
    """On a baseline all would tie, and of codes the collapsed win; what --rank-by names is free."""
    config.probe.tasks, config.probe.features = ("codes", "phones"), ("mfcc", "random c", "c", "z")
    assert check_rank_by(config, None) == ("phones", "c")
    assert check_rank_by(config, "phones/mfcc") == ("phones", "mfcc")
    config.probe.features = ("mfcc", "random c")
    with pytest.raises(UserError, match="has none"):
        check_rank_by(config, None)
    with pytest.raises(UserError, match=r"name one of probe\.tasks"):
        check_rank_by(config, "codes/mfcc")
    images = image_fashion_mnist.get_config()
    images.probe.tasks = ("neighbours", "linear", "knn", "supervised")
    assert check_rank_by(images, None) == ("linear", "z")
    with pytest.raises(UserError, match=r"one of probe\.tasks \(linear, knn\)"):
        check_rank_by(images, "neighbours/z")


def command(folder, *more, status=0):
    shared = ("--config=configs/audio_synthetic.py", "--config.model.width=8")
    where = ("--workdir", str(folder)) if folder else ()
    return commands.run("tests.fake_sweep", *shared, *where, *more, status=status)


def test_rounds_end_to_end(tmp_path):
    """Cells for a third of the steps, the best for all; again, and only what failed starts."""
    flags = ("--cell=narrow: model.width=4", "--cell=", "--cell=wrong: data.source=folder",
             "--rounds=2", "--rank-by=phones/z", "--config.num_steps=4",
             "--config.probe.tasks=('phones',)", "--config.probe.features=('z',)",
             "--config.optim.warmup_steps=0")  # fmt: skip
    done = command(tmp_path, *flags, status=1)
    assert done.stdout.count("starts wrong") == 1
    assert "[1/1] done" in done.stdout
    ran = {path.parent.name for path in tmp_path.glob("*/config.json")}
    assert ran == {"narrow,num_steps=2", "base,num_steps=2", "base,num_steps=4"}
    assert "goes on: base  phones of z" in done.stdout
    assert len(json.loads((tmp_path / "comparison.json").read_text())["cells"]) == 4
    again = command(tmp_path, *flags, status=1)
    assert again.stdout.count("starts") == again.stdout.count("starts wrong") == 1


def test_a_sweep_end_to_end(tmp_path):
    """One cell runs, one fails; the same command tries again only that; another is refused."""
    cells = ("--cell=", "--cell=real: data.source=folder")
    wrong = command("", *cells, "--dry-run").stdout.splitlines()[1]
    assert "--config.data.source=folder" in wrong
    assert wrong.endswith("--workdir runs/audio_synthetic-sweep/real")
    first = command(tmp_path, *cells, status=1)
    assert first.stdout.startswith(f"workdir: {tmp_path}\n")
    assert "FAILED real: data.source is 'folder' and data.path is ''" in first.stdout
    assert "done   base" in first.stdout
    assert "1 finished, 1 failed" in first.stdout
    assert "To try again" in (tmp_path / "comparison.html").read_text()
    table = json.loads((tmp_path / "comparison.json").read_text())["cells"]
    assert [cell["cell"] for cell in table] == ["base", "real"]
    assert table[0]["runs"][0]["step"] == 20
    again = command(tmp_path, *cells, status=1)
    assert "cells: 2, done: 1" in again.stdout
    assert "starts base" not in again.stdout
    refused = command(tmp_path, "--cell=", status=2)
    assert "the cell real is" in refused.stderr
    assert refused.stderr.count("\n") == 1
