"""A run's model as a folder to share: weights, description, and a model card.

    python -m experiments.export --workdir runs/voices [--output exported/]

`cpc.models.load(folder)` gives its embed function back.
"""

import copy
import json
import pathlib
from typing import Any

from absl import flags

from cpc import models
from cpc.data import SAMPLE_RATE_HZ, TARGET_RMS
from cpc.train import restore_params
from cpc.types import UserError
from experiments import audio, image, launch, training
from experiments.launch import Config

#: Keys of the data section that name places on this machine: only the last part is shared.
PLACES = ("path", "train_list", "test_list", "phones")
#: What of the data section a model card shows.
SHOWN = ("source", "name", "path", "split", "window_samples", "size", "channels", "one_speaker")
COLUMNS = ("task", "data", "features", "probe", "unit", "accuracy", "low", "high", "majority")


def run(workdir: str | None, output: str | None, step: int | None) -> None:
    """Write the folder and say where it is."""
    if not workdir:
        raise UserError("no --workdir is given: name the directory of a run, such as runs/voices")
    path = pathlib.Path(workdir).expanduser()
    pretrained = read_run(path, step)
    folder = pathlib.Path(output).expanduser() if output else path / models.EXPORTED
    models.save(folder, pretrained)
    card = write_card(path, folder.resolve().name, pretrained)
    (folder / "README.md").write_text(card, encoding="utf-8")
    print(f"exported: {folder}, step {pretrained.about['step']:,}")


def read_run(workdir: pathlib.Path, step: int | None = None) -> models.Pretrained:
    """The model of a run's checkpoint, the newest by default."""
    config = launch.read_config(workdir)
    kind = kind_of(config, workdir)
    if not any(workdir.glob("checkpoints/*")):
        raise UserError(
            f"{workdir} has no checkpoints: train it first with python -m "
            f"experiments.{'audio' if kind == 'audio' else 'image'} --workdir {workdir}"
        )
    arrays, _, step = restore_params(workdir / "checkpoints", step)
    variables = training.model_variables(arrays["params"], arrays["ema"], arrays["extra"])
    if kind == "audio":
        model = audio.build_model(config.model)
        given = {"rms": TARGET_RMS, "sample_rate_hz": SAMPLE_RATE_HZ}
        shape = [config.data.window_samples]
    else:
        model = image.build_model(config, image.choose_offsets(config))
        grid = models.patch_grid(
            (config.augment.crop,) * 2, config.model.patch, config.model.stride
        )
        channels = 1 if config.augment.grey else config.data.channels
        given, shape = {}, [*grid, config.model.patch, config.model.patch, channels]
    given = {"kind": kind, "shape": shape, **given}
    about = {"step": step, "config": shared_config(config)}
    return models.Pretrained(models.module_of(model), variables, given, about)


def kind_of(config: Config, workdir: pathlib.Path) -> str:
    """What the run was trained on."""
    data = config.get("data", {})
    if "window_samples" in data:
        return "audio"
    if "size" in data:
        return "pictures"
    raise UserError(f"{workdir} holds no run on audio or pictures: there is no model to take")


def shared_config(config: Config) -> dict[str, Any]:
    """The config without the paths of this machine."""
    shared = copy.deepcopy(config.to_dict())
    for key in PLACES:
        if shared["data"].get(key):
            shared["data"][key] = pathlib.Path(shared["data"][key]).name
    return shared


def write_card(workdir: pathlib.Path, folder: str, pretrained: models.Pretrained) -> str:
    """The model card: what it was trained on, what was measured, how it is loaded."""
    config, step = pretrained.about["config"], pretrained.about["step"]
    data = dict(config["data"])
    if "window_samples" in data and data["source"] != "librispeech_tfds":
        data.pop("split", None)  # other sound has no split by name
    shown = [f"{key} {data[key]}" for key in SHOWN if data.get(key)]
    return f"""# {workdir.resolve().name}

Contrastive predictive coding (van den Oord et al. 2018) of {pretrained.input["kind"]}: encoder,
context and predictor after {step:,} of {config["num_steps"]:,} steps.

## Data

{"; ".join(shown)}. Batches of {config["data"]["batch_size"]}, seed {config["seed"]}, negatives by
the rule {config["negatives"]["rule"]}, loss {config["loss"]["name"]}.

## Mutual information

{describe_bound(workdir / "metrics.jsonl", step)}

## Probes

{describe_probes(workdir / "probes")}

## Use

```python
{how_to_load(folder, pretrained)}
```

`model.safetensors` holds the arrays; `config.json` the modules with all their fields, and the
config of the run. Neither holds code.
"""


def describe_bound(path: pathlib.Path, step: int) -> str:
    """The last held-out bound up to this step, in nats."""
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    strict = [r for r in records if r.get("series") == "strict" and r["step"] <= step]
    if not strict:
        return "No bound was measured on held-out data."
    last = strict[-1]
    return (
        f"On held-out data, by InfoNCE against one latent of each independent sequence: at least "
        f"{last['nats']:.2f} nats,\nthe mean over offsets {min(last['offsets'])} to "
        f"{max(last['offsets'])} (step {last['step']:,}, N {max(last['n']):.0f}, ceiling "
        f"{max(last['log_n']):.2f} nats)."
    )


def describe_probes(folder: pathlib.Path) -> str:
    """A table of every probe's accuracy with its interval."""
    lines = []
    for path in sorted(folder.glob("*.json")):
        recorded = launch.read_json(path)
        for row in recorded.get("rows", []):
            if set(COLUMNS) <= row.keys():
                percent = [f"{100 * row[key]:.1f}" for key in COLUMNS[5:]]
                words = [str(row[key]) for key in COLUMNS[:5]]
                lines.append(f"| {' | '.join([*words, *percent, str(recorded['step'])])} |")
    if not lines:
        return "None was fitted."
    head = ["task", "data", "features", "probe", "unit", "accuracy %", "low", "high", "majority %"]
    return "\n".join([f"| {' | '.join([*head, 'step'])} |", "|---" * 10 + "|", *lines])


def how_to_load(folder: str, pretrained: models.Pretrained) -> str:
    """Python that makes features."""
    load = f'embed = models.load("{folder}")'
    if pretrained.input["kind"] == "audio":
        rate, rms = pretrained.input["sample_rate_hz"], pretrained.input["rms"]
        return f"""from cpc import models

{load}
# x (b, s) float32 at {rate} Hz, each recording at a root mean square of {rms}
z, c = embed(x)  # both (b, t, width)"""
    config = pretrained.about["config"]
    x = f"augment.scale_pixels(augment.centre_crop(pictures, {config['augment']['crop']}))"
    x = f"augment.to_grey({x})" if config["augment"]["grey"] else x
    patch, stride = config["model"]["patch"], config["model"]["stride"]
    size, channels = config["data"]["size"], config["data"]["channels"]
    return f"""from cpc import models
from cpc.data import augment

{load}
# pictures: a jax array of uint8, (b, {size}, {size}, {channels})
x = augment.cut_patches({x}, {patch}, {stride})
z, c = embed(x)  # both over the grid of patches: (b, i, j, width)"""


if __name__ == "__main__":
    OUTPUT = flags.DEFINE_string(
        "output", None, "Folder to write; by default exported/ in the run's directory."
    )
    STEP = flags.DEFINE_integer("step", None, "Checkpoint to export; the newest by default.")
    launch.run(lambda: run(launch.WORKDIR.value, OUTPUT.value, STEP.value))
