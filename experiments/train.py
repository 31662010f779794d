"""Training of a config of any kind, as `cpc audio`, `cpc image` and so on do of their own.

    cpc train --config audio_voices --workdir runs/voices
    cpc train --config audio_voices --keys optim

The same command again resumes. `cpc configs` lists configs; --keys lists the keys of a config, or
of one section, which --config.KEY=VALUE sets. Without --config it lists those of all kinds of data.
"""

import importlib

from cpc.types import UserError
from experiments.command import cli
from experiments.command.keys import list_keys, list_kinds, take_section
from experiments.modality import MODALITIES
from experiments.mutual_information import run as mutual_information
from experiments.rl import run as rl
from experiments.run import run
from experiments.words import run as words

#: Kinds of config that are not in MODALITIES.
OTHERS = {"rl": rl.run, "words": words.run, "mutual_information": mutual_information.run}

if __name__ == "__main__":
    SECTION = take_section()
    CONFIG = cli.define_config()

    def main() -> None:
        """Train the config, or list its keys."""
        config = CONFIG.value
        if config is None and SECTION is not None:
            print(list_kinds(SECTION))
            return
        if config is None:
            raise UserError("--config is required, e.g. --config audio_voices")
        kind = config.get("kind")
        if kind not in (*MODALITIES, *OTHERS):
            raise UserError(f"the config is of kind {kind!r}, which is not trained: pass another")
        if SECTION is not None:
            name = "information" if kind == "mutual_information" else kind
            print(list_keys(importlib.import_module(f"configs.{name}").KEYS, SECTION))
        elif kind in OTHERS:
            OTHERS[kind](config, cli.WORKDIR.value, cli.DEVICE.value)
        else:
            run(MODALITIES[kind], config, cli.WORKDIR.value, cli.DEVICE.value)

    cli.run(main)
