"""Files, recordings, images or texts that are left out or altered, and how that is reported."""

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeAlias

from cpc.types import UserError

#: Name, and the reason in one sentence; each becomes a line of skipped.txt.
Skipped: TypeAlias = tuple[str, str]
#: Names that a count of entries gives as examples.
NUM_EXAMPLES = 3


def find_copies(digests: Iterable[Hashable | None]) -> dict[int, int]:
    """Return the index of each copy, mapped to the index of the first entry of equal content.

    For data of any kind: give a digest of each entry's decoded content, in the order in which the
    entries are kept, and leave the copies out before splitting, listed in `skipped`. An entry whose
    digest is None, such as a damaged one, has no copies.

    >>> find_copies(["a", "b", None, "a", "b", "a", None])
    {3: 0, 4: 1, 5: 0}
    """
    first: dict[Hashable, int] = {}
    copies = {}
    for index, digest in enumerate(digests):
        if digest is not None and first.setdefault(digest, index) != index:
            copies[index] = first[digest]
    return copies


def check_skipped(skipped: Sequence[Skipped], total: int, max_fraction: float, what: str) -> None:
    """Check that not too large a share is skipped for the rest to be trusted."""
    if len(skipped) > max_fraction * total:
        first = "; ".join(reason for _, reason in skipped[:3])
        raise UserError(
            f"{len(skipped)} of {total} {what} cannot be used, more than {max_fraction:.0%}: "
            f"{first}"
        )


def count_names(entries: Sequence[Skipped], what: str) -> str:
    """Return a count of entries with their first names, for a console's line about data.

    >>> count_names([(f"data/{name}.wav", "is empty") for name in "abcd"], "files skipped")
    '4 files skipped (a.wav, b.wav, c.wav, ...)'
    >>> count_names([], "files skipped")
    '0 files skipped'
    """
    names = [name.rstrip("/").rpartition("/")[2] for name, _ in entries[:NUM_EXAMPLES]]
    more = ["..."] * (len(entries) > NUM_EXAMPLES)
    examples = f" ({', '.join(names + more)})" if names else ""
    return f"{len(entries):,} {what}{examples}"
