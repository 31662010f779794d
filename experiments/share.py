"""A trained model as a folder to share: weights, what its input is, and a model card."""

import copy
import pathlib
from typing import Any

from cpc import models
from cpc.data import SAMPLE_RATE_HZ, TARGET_RMS
from cpc.types import UserError
from experiments.launch import Config
from experiments.status import number, read_json, read_records, show

CARD = "README.md"
#: Keys of the data section that name places on this machine: only the last part is shared.
PLACES = ("path", "train_list", "test_list", "phones")
#: What of the data section a model card shows.
SHOWN = ("source", "name", "path", "split", "window_samples", "size", "channels", "one_speaker")
COLUMNS = ("task", "data", "features", "probe", "unit", "accuracy", "low", "high", "majority")


def share(workdir: pathlib.Path, folder: pathlib.Path, pretrained: models.Pretrained) -> None:
    """Write weights, description and card; the card is made first, so that all or none is there."""
    card = write_card(workdir, folder.resolve().name, pretrained)
    models.save(folder, pretrained)
    (folder / CARD).write_text(card, encoding="utf-8")


def describe(
    config: Config, workdir: pathlib.Path, model: models.Model, variables: Any, step: int
) -> models.Pretrained:
    """The model of a run's config, with what its input is."""
    if kind_of(config, workdir) == "audio":
        given = {
            "kind": "audio",
            "shape": [config.data.window_samples],
            "rms": TARGET_RMS,
            "sample_rate_hz": SAMPLE_RATE_HZ,
        }
    else:
        patch, size = config.model.patch, (config.augment.crop, config.augment.crop)
        channels = 1 if config.augment.grey else config.data.channels
        grid = models.patch_grid(size, patch, config.model.stride)
        given = {"kind": "pictures", "shape": [*grid, patch, patch, channels]}
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
    strict = [r for r in read_records(path) if r.get("series") == "strict" and r["step"] <= step]
    measured = [record for record in strict if is_measured(record)]
    if not measured:
        return "No bound was measured on held-out data."
    last = measured[-1]
    return (
        f"On held-out data, by InfoNCE against one latent of each independent sequence: at least "
        f"{last['nats']:.2f} nats,\nthe mean over offsets {min(last['offsets'])} to "
        f"{max(last['offsets'])} (step {last['step']:,}, N {max(last['n']):.0f}, ceiling "
        f"{max(last['log_n']):.2f} nats)."
    )


def is_measured(record: dict[str, Any]) -> bool:
    """Whether nothing of a bound is null, as what was not finite is."""
    lists = [record.get(name) for name in ("offsets", "n", "log_n")]
    values = [record.get("nats"), *(value for given in lists for value in given or [None])]
    return None not in map(number, values)


def describe_probes(folder: pathlib.Path) -> str:
    """A table of every probe's accuracy with its interval."""
    lines = []
    for path in sorted(folder.glob("*.json")):
        recorded = read_json(path)
        for row in recorded.get("rows", []):
            if set(COLUMNS) <= row.keys():
                percent = [show(number(row[key]), ".1f", 100) for key in COLUMNS[5:]]
                words = [str(row[key]) for key in COLUMNS[:5]]
                lines.append(f"| {' | '.join([*words, *percent, str(recorded.get('step'))])} |")
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
