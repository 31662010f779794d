"""What a checkpoint says about itself, and whether what was read is what was written."""

import pathlib
import zlib
from typing import Any

import jax
import numpy as np

from cpc.types import PyTree, UserError

#: By path: {"shape": list, "dtype": str, "crc32": int | None}
Leaves = dict[str, dict[str, Any]]


def describe_leaves(arrays: PyTree) -> Leaves:
    """Return each leaf's shape, dtype and crc32 by path (None if it is spread over processes)."""
    return {
        name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype), "crc32": _crc32(leaf)}
        for name, leaf in named_leaves(arrays)
    }


def check_sums(arrays: PyTree, leaves: Leaves) -> None:
    """Raise a ValueError that names the first leaf that is not what was saved."""
    for name, leaf in named_leaves(arrays):
        if leaves[name]["crc32"] not in (None, _crc32(leaf)):
            raise ValueError(f"the checksum of {name} is wrong")


def check_same_shapes(shapes: PyTree, leaves: Leaves, path: pathlib.Path) -> None:
    """Raise a UserError that names the first path at which checkpoint and target differ."""
    wanted = {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in named_leaves(shapes)}
    found = {name: [leaf["shape"], leaf["dtype"]] for name, leaf in leaves.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"The checkpoint {path} is of another model: {name} is {found.get(name, 'absent')} "
                f"there and {wanted.get(name, 'absent')} here; use the config that wrote it, or "
                "another work directory."
            )


def nest(leaves: Leaves, roots: tuple[str, ...]) -> dict[str, Any]:
    """Rebuild the trees under `roots` from the paths of their leaves, of dicts and lists.

    A named tuple becomes a dict, and what is numbered a list: a checkpoint tells no more.
    """
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        if parents and parents[0] in roots:
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = jax.ShapeDtypeStruct(tuple(leaf["shape"]), jax.numpy.dtype(leaf["dtype"]))
    return {root: _number(branch) for root, branch in tree.items()}


def _number(tree: Any) -> Any:
    """Dicts with keys 0, 1, ... as lists."""
    if not isinstance(tree, dict):
        return tree
    branches = {name: _number(branch) for name, branch in tree.items()}
    if branches and sorted(branches) == sorted(map(str, range(len(branches)))):
        return [branches[str(i)] for i in range(len(branches))]
    return branches


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """Return (path, leaf) of each leaf, in the order of `jax.tree.leaves`.

    >>> named_leaves({"encoder": {"kernel": 1, "bias": 2}})
    [('encoder/bias', 2), ('encoder/kernel', 1)]
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def _crc32(leaf: Any) -> int | None:
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        return None
    return zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8).reshape(-1).data)
