"""uv.lock agrees with pyproject.toml and names only public hosts."""

import pathlib
import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parents[1]
#: Hosts of public packages.
PUBLIC = {"pypi.org", "files.pythonhosted.org"}


def test_lock_matches_the_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    own = next(package for package in lock["package"] if package["name"] == project["name"])
    locked = {
        (one["name"], one.get("marker", ""), frozenset(one.get("specifier", "").split(",")))
        for one in own["metadata"]["requires-dist"]
    }
    lists = [("", project["dependencies"]), *project["optional-dependencies"].items()]
    wanted = set()
    for extra, lines in lists:
        for one in map(Requirement, lines):
            markers = [str(one.marker).replace('"', "'")] if one.marker else []
            marker = " and ".join([*markers, *([f"extra == '{extra}'"] if extra else [])])
            wanted.add(
                (canonicalize_name(one.name), marker, frozenset(str(one.specifier).split(",")))
            )
    assert locked == wanted, "uv lock makes it anew"


def test_lock_names_only_public_hosts():
    hosts = re.findall(r"\w+://([^/\"]+)", (ROOT / "uv.lock").read_text())
    assert set(hosts) == PUBLIC
    assert "file:" not in (ROOT / "uv.lock").read_text()
