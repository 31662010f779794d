r"""Words by any objective from maximum likelihood to InfoNCE.

    python -m experiments.words --config configs/text_words.py --workdir runs/words

configs/words.py says what each key of a config means; any can be set, and the same command again
resumes. `python -m experiments.text` takes these configs too.
"""

from experiments.command import cli
from experiments.words.run import run

if __name__ == "__main__":
    CONFIG = cli.define_config()
    cli.run(lambda: run(CONFIG.value, cli.WORKDIR.value, cli.DEVICE.value))
