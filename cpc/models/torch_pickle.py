"""The pickles inside torch's files, read as data: nothing is imported, named or called.

`pickle.load` runs a small program that a file brings along, and a file can make it call anything.
Here the program's opcodes are walked (`pickletools.genops` decodes them and does no more) by an
interpreter that can build containers, numbers, strings and descriptions of tensors, and for which
the name of a function or class is a string. Names other than those in `GLOBALS` are refused.
"""

import io
import math
import pickletools
import reprlib
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np

from cpc.types import UserError

#: Storages of torch by their names, as types of numpy.
DTYPES: dict[str, np.dtype] = {
    f"torch.{name}Storage": np.dtype(kind)
    for name, kind in {
        "Double": np.float64,
        "Float": np.float32,
        "Half": np.float16,
        "BFloat16": jnp.bfloat16,
        "Long": np.int64,
        "Int": np.int32,
        "Short": np.int16,
        "Char": np.int8,
        "Byte": np.uint8,
        "Bool": np.bool_,
    }.items()
}
#: Opcodes whose argument is the value.
VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"),
}
#: Opcodes that are a value.
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}


class Name(NamedTuple):
    """The name of a function or class, which is never looked up."""

    full: str


class Storage(NamedTuple):
    """Numbers that lie elsewhere in the file."""

    key: str
    dtype: np.dtype
    size: int
    """Of the storage, in numbers."""


class Tensor(NamedTuple):
    """A view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of the view, in numbers, as the offset."""


class Namespace(dict[str, Any]):
    """The attributes of an argparse.Namespace."""


def read_pickle(stream: io.BufferedIOBase) -> Any:
    """Return what the pickle at the stream's place describes, tensors as `Tensor`.

    The stream ends up behind the pickle. Of an OrderedDict the order and nothing else is kept.

    Raises:
      UserError: a name that is not in `GLOBALS`, or an opcode that torch does not use.
      ValueError, LookupError, TypeError: it is damaged, or describes what cannot be.

    >>> import io, pickle
    >>> read_pickle(io.BytesIO(pickle.dumps({"a": [1, 2.5, None], "b": (True, "c")})))
    {'a': [1, 2.5, None], 'b': (True, 'c')}
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        found = stack[(start := marks.pop()) :]
        del stack[start:]
        return found

    opcodes: Any = pickletools.genops(cast(Any, stream))
    for opcode, argument, _ in opcodes:
        name: str = opcode.name
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name]())
        elif name in ("PROTO", "FRAME"):
            continue
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("TUPLE", "LIST", "DICT"):
            made = since_mark()
            stack.append({"TUPLE": tuple, "LIST": list, "DICT": _pairs}[name](made))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            made = [stack.pop() for _ in range(int(name[-1]))]
            stack.append(tuple(reversed(made)))
        elif name in ("APPEND", "APPENDS"):
            made = since_mark() if name == "APPENDS" else [stack.pop()]
            _expect(stack[-1], list).extend(made)
        elif name in ("SETITEM", "SETITEMS"):
            made = since_mark() if name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
            _expect(stack[-1], dict).update(_pairs(made))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            made = [stack.pop(), stack.pop()][::-1] if name != "GLOBAL" else argument.split(" ", 1)
            stack.append(_name(".".join(_expect(part, str) for part in made)))
        elif name == "BINPERSID":
            stack.append(_storage(*_expect(stack.pop(), tuple)))
        elif name in ("REDUCE", "NEWOBJ"):
            made = _expect(stack.pop(), tuple)
            stack.append(GLOBALS[_expect(stack.pop(), Name).full](*made))
        elif name == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], Namespace):
                stack[-1].update(_expect(state, dict))
            else:  # attributes of a dictionary, such as a state dict's versions
                _expect(stack[-1], dict)
        elif name == "STOP":
            return stack.pop()
        else:
            raise UserError(f"its pickle has the opcode {name}, which torch does not write")
    raise ValueError("the pickle has no end")


def _expect(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        wanted = getattr(kind, "__name__", kind)
        raise TypeError(f"{type(value).__name__} where {wanted} should be")
    return value


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    # The hash of a tuple in a tuple, and so on, can take forever.
    keys = [_expect(key, str | int | float) for key in flat[::2]]
    return dict(zip(keys, flat[1::2], strict=True))


def _name(full: str) -> Name:
    if full not in GLOBALS and full not in DTYPES:
        raise UserError(
            f"it asks for {full[:200]!r}, and files are read here as data, without any code: "
            "save the state dict of tensors alone"
        )
    return Name(full)


def _storage(kind: Any, name: Any, key: Any, device: Any, size: Any, view: Any = None) -> Storage:
    """What the five words behind a tensor mean; a sixth is a view of a storage, of 2018."""
    if kind != "storage" or view is not None:
        raise ValueError("a storage of an unknown kind")
    dtype = DTYPES[_expect(name, Name).full]
    return Storage(_expect(key, str), dtype, _sizes((size,))[0])


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Tensor:
    """Describe a view of a storage; a step of 0 repeats numbers, as `torch.Tensor.expand` does."""
    storage = _expect(storage, Storage)
    shape, strides, (offset,) = _sizes(shape), _sizes(strides), _sizes((offset,))
    last = offset + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if len(shape) > 32 or (math.prod(shape) and last >= storage.size):
        raise ValueError(
            f"a tensor of shape {reprlib.repr(shape)} lies outside of its {storage.size} numbers"
        )
    return Tensor(storage, offset, shape, strides)


def _sizes(values: Any) -> tuple[int, ...]:
    if not all(type(value) is int and 0 <= value < 2**62 for value in _expect(values, tuple)):
        raise ValueError(f"{reprlib.repr(values)} are no sizes")
    return values


def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    return _pairs([part for pair in pairs for part in _expect(pair, list | tuple)])


#: All that a file may ask for -> what is made of its arguments.
GLOBALS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered,
    "argparse.Namespace": lambda: Namespace(),
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: _expect(tensor, Tensor),
}
