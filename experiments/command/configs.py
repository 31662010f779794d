"""All configs by name, with their first line.

    cpc configs

`cpc train --config NAME` runs one, and `cpc NAME --keys` lists the keys of a kind of data.
"""

from experiments.command import cli
from experiments.command.keys import find_configs


def main() -> None:
    """Print the table."""
    found = dict(find_configs())
    width = max(map(len, found))
    for name, first in found.items():
        print(f"{name:<{width}}  {first}")


if __name__ == "__main__":
    cli.run(main, shared=())
