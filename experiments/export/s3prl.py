"""What makes an exported folder of a model of sound an upstream of s3prl, and of torch.hub."""

import pathlib

from cpc.files import write_text
from cpc.types import UserError

EXPERT = pathlib.Path(__file__).with_name("expert_torch.py")
HUBCONF = '''"""The entry of torch.hub, and of s3prl where this folder lies in s3prl/upstream."""

dependencies = ["torch", "jax", "cpc"]

if __package__ in ("", "hubconf"):  # torch.hub calls this module "hubconf.py"
    from expert import UpstreamExpert as _UpstreamExpert
else:
    from .expert import UpstreamExpert as _UpstreamExpert


def cpc_jax(*args, **kwargs):
    """Return the upstream of the model in this folder, or of another one, given as ckpt."""
    return _UpstreamExpert(*args, **kwargs)
'''


def write_expert(folder: pathlib.Path, kind: str) -> None:
    """Write expert.py and hubconf.py beside an exported model.

    Raises:
        UserError: the model is of another kind of data than sound.
    """
    if kind != "audio":
        raise UserError(f"s3prl is of speech, and this is a model of {kind}: leave out --s3prl")
    write_text(folder / "expert.py", EXPERT.read_text())
    write_text(folder / "hubconf.py", HUBCONF)
