import itertools
import json

import pytest
from ml_collections import ConfigDict

from configs import audio_synthetic, image_fashion_mnist, mi_consistency, mi_tasks
from cpc.files import flatten, write_json
from cpc.results import Score
from cpc.train import make_mesh
from cpc.types import UserError
from experiments.command import run_dir
from experiments.sweep.__main__ import merge_plans
from experiments.sweep.cells import Cell, check_rank_by, keep_best, make_cells, shorten
from experiments.sweep.jobs import Job, check_cell, run_jobs
from tests import commands
from tests.fake_run import write_records
from tests.small_run import write_run


@pytest.fixture
def config():
    return audio_synthetic.get_config()


def names(cells):
    return [cell.name for cell in cells]


def test_grids_are_multiplied_with_seeds(config):
    grids = ["negatives.rule=batch,own_sequence", "model.num_offsets=2, 4,8"]
    cells = make_cells(config, grids, [], 2)
    assert len(cells) == 2 * 3 * 2
    assert names(cells)[1:3] == [
        "negatives.rule=batch,model.num_offsets=2,seed=1",
        "negatives.rule=batch,model.num_offsets=4,seed=0",
    ]
    assert [*cells[2].settings.values()] == ["batch", 4, 0]
    config.seed = 7
    assert names(make_cells(config, [], [], 2)) == ["base,seed=7", "base,seed=8"]


def test_single_cells_and_their_names(config):
    singles = ["", "model.norm=layer optim.learning_rate=1e-3", "two tasks: probe.tasks=()"]
    cells = make_cells(config, ["model.width=8"], singles, None)
    single = "model.norm=layer,optim.learning_rate=0.001"
    assert names(cells) == ["model.width=8", "base", single, "two_tasks"]
    assert cells[3].settings == {"probe.tasks": ()}
    assert names(make_cells(config, [], ["near:"], None)) == ["near"]
    # Names are valid directory names.
    grid = [f"{key}=1" for key, value in flatten(config).items() if type(value) is float]
    cells = make_cells(config, grid, ["data.path=/a/b", "data.path=..", "../up: seed=1"], None)
    assert all("/" not in cell.name and not cell.name.startswith(".") for cell in cells)
    assert len(cells[0].name) == 180
    assert len(set(names(cells))) == len(cells)


def test_cells_from_a_python_file(config, tmp_path):
    path = tmp_path / "cells.py"
    path.write_text(
        "GRID = {'probe.tasks': [('phones',), ()], 'data.path': ['a, b']}\n"
        "CELLS = {'near by': {'model.num_offsets': 1}, 'base': {}}\n"
    )
    cells = make_cells(config, [str(path)], ["x: model.width=8"], None)
    assert names(cells)[2:] == ["near_by", "base", "x"]
    assert cells[0].settings == {"probe.tasks": ("phones",), "data.path": "a, b"}
    for text, words in (("GRID = 1", "defines no cells"), ("1 / 0", "fails .ZeroDiv")):
        path.write_text(text)
        with pytest.raises(UserError, match=words):
            make_cells(config, [str(path)], [], None)


@pytest.mark.parametrize(("key", "text", "value"), [
    ("model.width", "16", 16), ("optim.learning_rate", "1e-3", 1e-3),
    ("data.one_speaker", "true", True), ("data.path", "gs://a,b", "gs://a,b"),
    ("probe.tasks", "()", ()), ("probe.features", "('c','random_c')", ("c", "random_c")),
])  # fmt: skip
def test_values_are_parsed_by_the_type_in_the_config(config, key, text, value):
    for form in (f"{key}={text}", f"--config.{key}={text}"):
        (cell,) = make_cells(config, [], [form], None)
        assert (cell.settings, type(cell.settings[key])) == ({key: value}, type(value))


@pytest.mark.parametrize(("grids", "singles", "seeds", "words"), [
    (["model.num_ofsets=2"], [], None, r"no key model\.num_ofsets; .*model\.num_offsets"),
    (["model.width"], [], None, "is not a setting"),
    (["model.width=8,"], [], None, "got ''"),
    (["model.width=8", "model.width=16"], [], None, "model.width twice"),
    ([], ["model.width=8 model.width=16"], None, "model.width twice"),
    ([], ["model.width"], None, "is not a setting"),
    (["optim.learning_rate=1e-3,0.001"], [], None, "two cells have the name optim"),
    (["seed=1,2"], [], 2, "--seeds and the key seed"),
])  # fmt: skip
def test_invalid_cells_are_rejected(config, grids, singles, seeds, words):
    with pytest.raises(UserError, match=words):
        make_cells(config, grids, singles, seeds)


@pytest.mark.parametrize(("module", "key", "value", "words"), [
    (audio_synthetic, "negatives.rule", "bach", r"negatives\.rule must be .*batch.*'bach'"),
    (mi_tasks, "kind", "mi_stairs", "kind must .*'mi_stairs'"),
    (mi_consistency, "rows", (7, 3), "rows must be increasing numbers up to 28"),
])  # fmt: skip
def test_cells_with_invalid_values_are_rejected(module, key, value, words):
    with pytest.raises(UserError, match=f"the cell x: .*{words}"):
        check_cell(module.get_config(), Cell("x", {key: value}))
    check_cell(mi_tasks.get_config(), Cell("x", {"num_seeds": 3}))
    with pytest.raises(UserError, match=r"kind must .*audio, image.*None"):
        check_cell(ConfigDict({"seed": 0}), Cell("x", {}))


def test_different_sweep_is_rejected_with_its_differences(tmp_path):
    here = {"config": {"model": {"width": 8}}, "cells": {"a": "1", "base": "{}"}, "rounds": "1"}
    assert merge_plans(here, tmp_path, merge_plans(here, tmp_path, None)).items() > here.items()
    other = {**here, "config": {"model": {"width": 4}}, "cells": {"a": "2", "c": "{}"}}
    for found, words in (
        (other, r"cells\.a was.*cells\.base .*'absent'.*cells\.c was.*model\.width was 4 and is 8"),
        ({**here, "rounds": "3"}, "rounds was"), ({}, r"cells\.a was 'absent'"),
        ({"reproduction": {}, "cells": {}}, "contains a reproduction"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            merge_plans(here, tmp_path, found)


@pytest.fixture
def jobs(tmp_path):
    return [Job(name, tmp_path / name, ["command", name]) for name in "abc"]


@pytest.mark.parametrize("is_first", [True, False])
def test_starting_a_run_clears_its_failure(tmp_path, config, monkeypatch, is_first):
    monkeypatch.setattr(run_dir, "is_first", lambda: is_first)
    (tmp_path / "config.json").write_text("{}")  # failed before reading the data
    run_dir.record_state(tmp_path, "failed")
    with run_dir.open_run(str(tmp_path), config, make_mesh(1)):
        assert bool(run_dir.read_failure(tmp_path)) != is_first


@pytest.mark.parametrize(("code", "words", "error"), [
    (1, "\n", "no output"), (-9, "step 50\n", "killed by SIGKILL; last line: step 50"),
    (-50, "", "killed by signal 50"), (0, "step 3\n", "step 3"),
])  # fmt: skip
def test_failure_records_the_last_error(jobs, code, words, error):
    """Exit status 0 before the last step is also a failure, except after a signal."""

    def launch_one(job):
        write_json(job.folder / "config.json", {"seed": 0, "num_steps": 4})
        write_records(job.folder, [{"step": 3, "split": "train", "num_steps": 4}])
        (job.folder / "report.html").touch()
        run_dir.record_state(job.folder, "running")
        with job.log.open("a") as log:
            log.write(words)
        return code

    jobs[0].folder.mkdir()
    jobs[0].log.write_text("error: of an earlier start\n")
    run_jobs(jobs[:1], lambda wanted: (launch_one, 1), lambda: 0, lambda: None)
    failure = run_dir.read_state(jobs[0].folder)
    found = {name: failure[name] for name in ("state", "status", "error", "command")}
    wanted = {"state": "failed", "status": code, "error": error, "command": "command a"}
    assert found == wanted
    started, compared = [], []

    def interrupt(job):
        started.append(job.name)
        job.log.write_text("first\n")
        return 0

    after = lambda: compared.append(None)  # noqa: E731
    run_jobs(jobs[1:], lambda wanted: (interrupt, 1), lambda: len(started), after)
    assert (started, len(compared)) == (["b"], 1)
    assert not run_dir.read_failure(jobs[1].folder)


def scores_of(*values, task="phones", metric="accuracy", features="c", **options):
    return [
        Score(task, f"set{i}", "frame", features, "linear", metric, v, step=20, **options)
        for i, v in enumerate(values)
    ]


@pytest.fixture
def best_of(tmp_path):
    """Return the cells kept, named by letter and seed, and the printed lines."""

    def best(*found, task="phones", seeds=(0,)):
        folders, cells = [], []
        for scores, (name, seed) in zip(found, itertools.product("abcd", seeds), strict=False):
            folders.append(tmp_path / f"{len(list(tmp_path.iterdir()))}")
            write_run(folders[-1], seed, scores=scores, width=name)
            cells.append(Cell(f"{name}{seed}", {"model.width": name, "seed": seed}))
        kept, lines = keep_best(cells, folders, task, "c")
        return " ".join(names(kept)), lines

    return best


def test_best_third_is_kept_by_mean_score(best_of):
    values = [(0.9, 0.2), (0.5, 0.6), (0.6, 0.6), (0.6, 0.6), (0.7, 0.6), (), (), ()]
    found = [scores_of(*own) for own in values]
    kept, lines = best_of(*found, seeds=(0, 1))
    # Means: a 0.55, b 0.6; c lacks a seed, d has no scores.
    assert kept == "a0 a1 b0 b1"
    wanted = "continues: b0 60.0", "continues: a0 55.0", "ends: c0 2 of 4"
    for line, words in zip(lines, wanted, strict=True):
        assert all(word in line for word in words.split())
    assert best_of(*found[:6], seeds=(0, 1))[0] == "b0 b1"
    with pytest.raises(UserError, match="phones for c"):
        best_of([], [])
    with pytest.raises(UserError, match="every seed"):
        best_of(found[0], [], found[1], [], seeds=(0, 1))


def test_ranking_uses_one_metric_and_its_direction(best_of):
    # A cell without a score on the harder set does not win.
    kept, lines = best_of(scores_of(0.8), scores_of(0.9, 0.3), scores_of(0.9, 0.4))
    assert (kept, lines[-1].split("  ")[0], "1 of 2" in lines[-1]) == ("c0", "ends: a0", True)
    less = {"task": "codes", "higher_is_better": False}
    more = {"task": "codes", "metric": "perplexity"}
    codes = [
        scores_of(a, **less) + scores_of(b, **more) for a, b in ((100.0, 10.0), (200.0, 900.0))
    ]
    kept, lines = best_of(*codes, [], task="codes")
    assert kept == "a0"
    assert [line.split("  ")[0] for line in lines] == ["continues: a0", "ends: b0"]
    near = [one._replace(method="knn") for one in scores_of(0.9)]
    assert best_of(near + scores_of(0.6), scores_of(0.7))[0] == "b0"  # linear probes are preferred
    assert best_of(near, scores_of(0.7), task="knn")[0] == "a0"
    # Scores of other steps, tasks and features do not count.
    own = {"task": "ABX", "metric": "correlation"}
    early = scores_of(0.9, 0.9, **own)[1]._replace(step=2)
    other = [early, *scores_of(0.9, task="ABX", features="z"), *scores_of(0.9)]
    found = [*scores_of(-0.3, **own), *other], scores_of(-0.25, **own)
    kept, (line, _) = best_of(*found, task="abx")
    assert (kept, line.split("  ")[1]) == ("b0", "abx of c, correlation -0.25")


def test_each_round_divides_steps_by_three(config):
    cells = [Cell("a", {}), Cell("b", {"num_steps": 90})]
    config.num_steps = 100
    steps = [[cell.settings["num_steps"] for cell in shorten(config, cells, n)] for n in (2, 1, 0)]
    assert steps == [[12, 10], [34, 30], [100, 90]]


IMAGE_TASKS = ("neighbours", "linear", "knn", "supervised")


@pytest.mark.parametrize(("make", "tasks", "features", "rank_by", "found"), [
    (audio_synthetic, ("phones",), ("z", "c"), None, ("phones", "z")),
    (audio_synthetic, ("phones",), ("z", "c"), "phones/c", ("phones", "c")),
    (audio_synthetic, ("phones",), ("z", "c"), "phones", r"by phones, .* phones/z, phones/c"),
    (audio_synthetic, ("phones",), ("z", "c"), "phones/mfcc", r"by phones/mfcc, .*phones/z"),
    # Baselines tie and collapsed codes win, so they need an explicit --rank-by.
    (audio_synthetic, ("codes", "phones"), ("mfcc", "random c", "c", "z"), None, ("phones", "c")),
    (audio_synthetic, ("phones",), ("mfcc",), "phones/mfcc", ("phones", "mfcc")),
    (audio_synthetic, ("phones",), ("mfcc", "random c"), None, "no probe of c or z"),
    (audio_synthetic, ("codes",), ("c",), "codes/c", "no score that ranks"),
    (image_fashion_mnist, IMAGE_TASKS, ("z",), None, ("linear", "z")),
    (image_fashion_mnist, IMAGE_TASKS, ("z",), "neighbours/z", "have linear/z, knn/z"),
])  # fmt: skip
def test_default_ranking_uses_a_probe_of_learned_features(make, tasks, features, rank_by, found):
    config = make.get_config()
    config.probe.tasks, config.probe.features = tasks, features
    if isinstance(found, tuple):
        assert check_rank_by(config, rank_by) == found
        return
    with pytest.raises(UserError, match=found):
        check_rank_by(config, rank_by)


def command(*flags, status=1):
    return commands.run("tests.fake_sweep", "--config=audio_synthetic", *flags, status=status)


def test_sweep_with_rounds(tmp_path):
    where = ("--config.model.width=8", f"--workdir={tmp_path}")
    flags = ("--cell=narrow: model.width=4", "--cell=", "--cell=wrong: data.source=folder",
             "--rounds=2", "--rank-by=phones/z", "--config.num_steps=4",
             "--config.probe.tasks=('phones',)", "--config.probe.features=('z',)",
             "--config.optim.warmup_steps=0")  # fmt: skip
    wrong = command(*flags, "--dry-run", status=0).stdout.splitlines()[2]
    assert "--config.data.source=folder" in wrong
    assert wrong.endswith("--workdir runs/audio_synthetic-sweep/wrong,num_steps=2")
    done = command(*where, *flags).stdout
    assert done.count("starts wrong") == 1
    assert "FAILED wrong,num_steps=2: no recordings" in done
    assert "continues: base  phones of z" in done
    ran = {path.parent.name for path in tmp_path.glob("*/config.json")}
    assert ran == {"narrow,num_steps=2", "base,num_steps=2", "base,num_steps=4"}
    table = json.loads((tmp_path / "comparison.json").read_text())["cells"]
    assert (len(table), table[0]["runs"][0]["step"]) == (4, 20)
    again = command(*where, *flags).stdout
    assert again.count("starts") == again.count("starts wrong") == 1
    assert "cells.wrong" in command(*where, "--cell=", status=2).stderr
