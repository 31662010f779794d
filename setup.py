"""Where a wheel keeps the commands and their configs: what pyproject.toml alone cannot say.

In a checkout `experiments` and `configs` lie beside `cpc`. Names as common as these would stand in
the way of others in an environment: there they lie in the folder cpc/_checkout, from which the
command `cpc` (cpc/__main__.py) imports them, and nobody else can.
"""

from setuptools import find_packages, setup

INSIDE = "cpc._checkout"
TOPS = ("configs", "experiments")

beside = find_packages(include=[pattern for top in TOPS for pattern in (top, f"{top}.*")])
setup(
    packages=find_packages(include=["cpc", "cpc.*"]) + [f"{INSIDE}.{name}" for name in beside],
    package_dir={f"{INSIDE}.{top}": top for top in TOPS},
)
