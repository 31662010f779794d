"""Prepare Fashion-MNIST (31 MB of downloads) and print its classes.

    python -m cpc.data.fashion_mnist

The set itself: `cpc.data.sources.fashion_mnist`.
"""

import sys

from cpc.data.log import log_to_stderr
from cpc.data.sources.fashion_mnist import CLASS_NAMES, load_fashion_mnist, prepare_fashion_mnist
from cpc.types import UserError


def main() -> int:
    """Prepare the set and print its classes; returns the exit status."""
    try:
        folder = prepare_fashion_mnist()
        splits = load_fashion_mnist()
    except UserError as error:
        log_to_stderr(str(error))
        return 2
    print(f"{'class':12}" + "".join(f"{split:>8}" for split in splits))
    for number, name in enumerate((*CLASS_NAMES, "all")):
        counts = [
            len(s) if name == "all" else int((s.labels == number).sum()) for s in splits.values()
        ]
        print(f"{name:12}" + "".join(f"{count:8}" for count in counts))
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
