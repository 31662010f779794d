"""Files of `torch.save`, read without torch and without unpickling: see `cpc.models.torch_pickle`.

Since torch 1.6 such a file is a zip archive of a pickle (data.pkl) and a member for the numbers of
each storage (data/0, ...); before, pickles and numbers one after the other.
"""

import io
import math
import reprlib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpc.models.torch_pickle import Storage, Tensor, read_pickle
from cpc.types import UserError

#: Of a pickle. It holds names and sizes, of which a large network has 100 kB.
MOST_PICKLE_BYTES = 4 << 20
#: Tensors may share numbers, but together have at most this many times the numbers of the file ...
MAX_SHARED = 4
#: ... or this many numbers, if these are more: one number can be expanded to a large tensor.
MAX_EXPANDED = 2**24
#: How files of before torch 1.6 begin: a number of theirs as a pickle of its own.
MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
#: Of the tar archives of before torch 0.2 the name of the first member.
TAR = b"sys_info", b"pickle", b"storages", b"tensors"
#: Entries of checkpoints that hold a model's arrays.
STATE_DICTS = "weights", "gEncoder", "state_dict", "model_state_dict", "model"
#: Endings of such files.
SUFFIXES = ".pt", ".pth"
#: Numbers of a storage as the file has them.
Read = Callable[[Storage], np.ndarray]


def read_torch(path: Path) -> Any:
    """Return what a file of `torch.save` holds: containers, numbers, strings and numpy arrays.

    An argparse.Namespace comes as a dictionary, and bfloat16 as that of jax.numpy.

    Raises:
      UserError: it cannot be read, is damaged or compressed, or holds objects of other classes,
        such as a pickled module.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
            file.seek(0)
            if start.startswith(b"PK"):
                return _read_zip(file)
            if start == MAGIC:
                return _read_sequence(file.read())
            if start.startswith(TAR):
                raise UserError(
                    "it is of torch before 0.2: load it with torch.load and save it with torch.save"
                )
            raise ValueError("its first bytes are not those of torch.save")
    except UserError as error:
        raise UserError(f"cannot read {path}: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    # A damaged pickle or archive fails in many ways.
    except (ValueError, LookupError, TypeError, EOFError, OverflowError, NotImplementedError,
            RuntimeError, MemoryError, zipfile.BadZipFile) as error:  # fmt: skip
        reason = str(error) or type(error).__name__
        raise UserError(
            f"{path} is damaged or not a file of torch.save ({reason}): fetch or save it again"
        ) from error


def _read_zip(file: io.BufferedIOBase) -> Any:
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        _check_zip(archive, file.seek(0, io.SEEK_END))
        roots = [name[: -len("data.pkl")] for name in members if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise ValueError(f"the archive has {len(roots)} members data.pkl, not one")
        root = roots[0]
        order = archive.read(f"{root}byteorder") if f"{root}byteorder" in members else b"little"
        if order not in (b"little", b"big"):
            raise ValueError(f"the byte order {order[:20]!r} is none")

        def read(storage: Storage) -> np.ndarray:
            found = archive.read(f"{root}data/{storage.key}")
            return _numbers(found, storage, ">" if order == b"big" else "<")

        if members[f"{root}data.pkl"].file_size > MOST_PICKLE_BYTES:
            raise ValueError("its pickle is too large for names and sizes")
        return _fill(read_pickle(io.BytesIO(archive.read(f"{root}data.pkl"))), read)


def _check_zip(archive: zipfile.ZipFile, num_bytes: int) -> None:
    """Check, before anything is read, that members are no more than the bytes that are there.

    torch compresses nothing, so that a member that is compressed, or claims more, is none of its.
    """
    members = archive.infolist()
    names = [member.filename for member in members]
    if len({*names}) < len(names):
        raise ValueError("two members of the archive have one name")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise ValueError(f"{member.filename[:200]!r} is compressed or encrypted")
    if sum(member.file_size for member in members) > num_bytes:
        raise ValueError("the members of the archive are larger than the archive")


def _read_sequence(file: bytes) -> Any:
    """Pickles of a magic number, a version, the machine's sizes, the content and storages' keys.

    Behind them lie the storages in that order, each after its size.
    """
    pickles = io.BytesIO(file[:MOST_PICKLE_BYTES])
    _, version, _, content, keys = (read_pickle(pickles) for _ in range(5))
    if version != 1001:
        raise ValueError(f"the version {reprlib.repr(version)} is unknown")
    storages = {tensor.storage.key: tensor.storage for tensor in _tensors(content)}
    found, place = {}, pickles.tell()
    for key in keys:
        if type(key) is not str:  # the hash of nested tuples can take forever
            raise ValueError(f"{reprlib.repr(key)} is not the key of a storage")
        num_bytes = storages[key].size * storages[key].dtype.itemsize
        if int.from_bytes(file[place : place + 8], "little") != storages[key].size:
            raise ValueError(f"the storage {key[:50]!r} is not as large as the pickle says")
        found[key] = _numbers(file[place + 8 : place + 8 + num_bytes], storages[key], "<")
        place += 8 + num_bytes
    return _fill(content, lambda storage: found[storage.key])


def _numbers(content: bytes, storage: Storage, order: str) -> np.ndarray:
    if len(content) != storage.size * storage.dtype.itemsize:
        raise ValueError(f"the storage {reprlib.repr(storage.key)} has {len(content):,} bytes")
    # As plain integers first: numpy cannot swap the bytes of a bfloat16.
    kind = f"u{storage.dtype.itemsize}"
    return np.frombuffer(content, order + kind).astype(f"={kind}").view(storage.dtype)


def _tensors(content: Any) -> list[Tensor]:
    """Return the tensors at any depth, once per occurrence; refuse content without an end."""
    found, left, count = [], [content], 0
    while left:
        one = left.pop()
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, Mapping | list | tuple):
            count += len(one)
            if count > MOST_PICKLE_BYTES:
                raise ValueError("its content refers to itself")
            left += one.values() if isinstance(one, Mapping) else one
    return found


def _fill(content: Any, read: Read) -> Any:
    """The content with arrays for tensors; each storage is read once."""
    tensors = _tensors(content)
    storages = {tensor.storage.key: tensor.storage for tensor in tensors}
    if any(tensor.storage != storages[tensor.storage.key] for tensor in tensors):
        raise ValueError("a storage has two types or sizes")
    most = max(MAX_EXPANDED, MAX_SHARED * sum(storage.size for storage in storages.values()))
    if sum(math.prod(tensor.shape) for tensor in tensors) > most:
        raise ValueError(f"its tensors have more than {most:,} numbers, which it does not hold")
    arrays = {key: read(storage) for key, storage in storages.items()}

    def fill(one: Any) -> Any:
        if isinstance(one, Tensor):
            steps = tuple(step * one.storage.dtype.itemsize for step in one.strides)
            numbers = arrays[one.storage.key][one.offset :]
            return np.lib.stride_tricks.as_strided(numbers, one.shape, steps).copy()
        if isinstance(one, dict):
            return {key: fill(value) for key, value in one.items()}
        if isinstance(one, list | tuple):
            return (list if isinstance(one, list) else tuple)(map(fill, one))
        return one

    return fill(content)


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the named arrays of a checkpoint, and its "config", empty if it has none.

    The arrays are the content itself, or its entry "weights" or "gEncoder", as CPC_audio calls
    what its hub has and what its training saves, or "state_dict".

    Raises:
      UserError: as `read_torch`, or it holds no named arrays.
    """
    content = read_torch(path)
    content = content if isinstance(content, dict) else {}
    for found in (*(content.get(name) for name in STATE_DICTS), content):
        if isinstance(found, dict) and (
            arrays := {str(name): one for name, one in found.items() if isinstance(one, np.ndarray)}
        ):
            config = content.get("config")
            return arrays, config if isinstance(config, dict) else {}
    raise UserError(
        f"{path} holds no named arrays, by itself or under {', '.join(STATE_DICTS)}: give a "
        "checkpoint with the state dict of a model"
    )
