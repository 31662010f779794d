"""A trained model as a folder to share: weights, what its input is, and a model card."""

import pathlib
from typing import Any

import numpy as np

from cpc import models
from cpc.files import flatten, plain, write_text
from cpc.report.engine import Table, markdown
from cpc.results import QUESTION, Run, last_scores, read_run, with_unit
from experiments.command.config import Config, load_config, with_settings
from experiments.training.problem import Contrastive

CARD = "README.md"


def share(
    kind: Contrastive, workdir: pathlib.Path, folder: pathlib.Path, pretrained: models.Pretrained
) -> None:
    """Write weights, description and card; the card is made first, so that all or none is there."""
    card = write_card(kind, workdir, folder.resolve().name, pretrained)
    models.save(folder, pretrained)
    write_text(folder / CARD, card)


def describe(
    kind: Contrastive,
    workdir: pathlib.Path,
    config: Config,
    model: models.Model,
    variables: Any,
    step: int,
) -> models.Pretrained:
    """Return the model of a run, with what its input is; of paths, only the last part is shared."""
    own, keys = flatten(config), flatten(kind.KEYS).items()
    names = {name: pathlib.Path(own[name]).name for name, key in keys if key.is_path}
    about = {"step": step, "config": plain(with_settings(config, names))}
    given = kind.describe_input(config, workdir)
    return models.Pretrained(model.module, variables, given, about)


def write_card(
    kind: Contrastive, workdir: pathlib.Path, folder: str, pretrained: models.Pretrained
) -> str:
    """Return the model card: what it was trained on, what was measured, how it is loaded."""
    config, step = pretrained.about["config"], pretrained.about["step"]
    run = read_run(workdir)
    usual = {name: key.default for name, key in kind.KEYS["data"].items()}
    shown = [
        f"{name} {value}"
        for name, value in config["data"].items()
        if name == "source" or value != usual.get(name)
    ]
    return f"""# {workdir.resolve().name}

Contrastive predictive coding (van den Oord et al. 2018) of {kind.NAME}: encoder,
context and predictor after {step:,} of {config["num_steps"]:,} steps.

## Data

{"; ".join(shown)}. Batches of {config["data"]["batch_size"]}, seed {config["seed"]}, negatives by
the rule {config["negatives"]["rule"]}, loss {config["loss"]["name"]}.

## Mutual information

{describe_bound(run, step)}

## Scores

{describe_scores(run, step)}

## Use

```python
{kind.show_use(load_config(config, kind.KEYS), folder)}
```

`model.safetensors` holds the arrays; `config.json` the modules with all their fields, and the
config of the run. Neither holds code.
"""


def describe_bound(run: Run, step: int) -> str:
    """Return the last held-out bound up to this step, in nats, in words."""
    rows = run.offsets[(run.offsets.series == "strict") & (run.offsets.step <= step)]
    # Of what was not finite, a number is missing: that evaluation is passed over.
    bad = rows[rows[["bound", "n", "log_n"]].isna().any(axis=1)].step
    rows = rows[~rows.step.isin(bad)]
    rows = rows[rows.step == rows.step.max()]
    if not len(rows):
        return "No bound was measured on held-out data."
    offsets = ", ".join(str(k) for k in sorted(rows.offset.unique()))
    return (
        f"On held-out data, by InfoNCE against one latent of each independent sequence: at least "
        f"{rows.bound.mean():.2f} nats,\nthe mean over offsets "
        f"{offsets} (step {rows.step.iloc[0]:,}, N {rows.n.max():.0f}, ceiling "
        f"{rows.log_n.max():.2f} nats)."
    )


def describe_scores(run: Run, step: int) -> str:
    """Return a table of the last scores up to this step."""
    import pandas as pd

    scores = last_scores(run.scores[run.scores.step <= step])
    if not len(scores):
        return "Nothing was measured."
    rows = pd.DataFrame(scores[[*QUESTION]])
    for name in ("value", "low", "high", "chance"):
        rows[name] = list(map(with_unit, scores[name], scores.metric))
    rows["better"] = np.where(scores.higher_is_better, "higher", "lower")
    rows["step"] = scores.step
    return markdown(Table("", rows)).rstrip()
