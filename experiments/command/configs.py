"""List all configs with the first lines of their docstrings.

    cpc configs

`cpc train --config NAME` trains a config, and `cpc train --config NAME --keys` lists its keys.
"""

from cpc.results.score import text_table
from experiments.command import cli
from experiments.command.keys import find_configs

if __name__ == "__main__":
    cli.run(lambda: print("\n".join(text_table([*find_configs()]))), shared=())
