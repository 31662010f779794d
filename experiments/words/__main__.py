r"""Words by any objective from maximum likelihood to InfoNCE.

    cpc words --config text_words --workdir runs/words

`cpc words --keys [SECTION]` lists the keys of a config; any can be set, and the same command again
resumes. `cpc text` takes these configs too.
"""

from configs.words import KEYS
from experiments.command import cli
from experiments.command.keys import print_keys
from experiments.words.run import run

if __name__ == "__main__":
    print_keys(KEYS)
    CONFIG = cli.define_config()
    cli.run(lambda: run(CONFIG.value, cli.WORKDIR.value, cli.DEVICE.value))
