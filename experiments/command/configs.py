"""All configs by name, with their first line.

    cpc configs

`cpc train --config NAME` runs one, and `cpc NAME --keys` lists the keys of a kind of data.
"""

from cpc.results.score import text_table
from experiments.command import cli
from experiments.command.keys import find_configs

if __name__ == "__main__":
    cli.run(lambda: print("\n".join(text_table([*find_configs()]))), shared=())
