"""Find the tests nearest to a function by imports."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path


def find_users(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the files that use each file, resolving exports of packages."""
    modules = {f[:-3].replace("/", ".").removesuffix(".__init__"): f for f in sources}
    trees = {file: ast.parse(text) for file, text in sources.items()}
    exports = {
        file: {alias.asname or alias.name: (node.module, alias.name)
               for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        for file, tree in trees.items() if file.endswith("__init__.py")
    }  # fmt: skip

    def resolve(module: str, name: str) -> str | None:
        file = modules.get(f"{module}.{name}")
        if not file and name in exports.get(modules.get(module), ()):
            return resolve(*exports[modules[module]][name])
        return file or modules.get(module)

    def used_by(file: str) -> Iterator[str | None]:
        packages = {}
        for node in ast.walk(trees[file]):
            match node:
                case ast.Import(names=names):
                    yield from (modules.get(alias.name) for alias in names)
                case ast.ImportFrom(module=module, names=names) if module:
                    for alias in names:
                        packages[alias.asname or alias.name] = f"{module}.{alias.name}"
                        used = resolve(module, alias.name)
                        yield used if used not in exports else None  # attributes: see below
                case ast.Constant(value=str(name)):  # a command, or a patched name
                    yield modules.get(f"{name}.__main__") or modules.get(name)
                case ast.Attribute(value=ast.Name(id), attr=attr) if packages.get(id) in modules:
                    yield resolve(packages[id], attr)

    users: dict[str, set[str]] = {}
    for file in sources:
        for used in used_by(file):
            users.setdefault(used, set()).add(file)
    return users


def distances(
    sources: Mapping[str, str], users: Mapping[str, set[str]], file: str, function: str
) -> dict[str, int]:
    """Return the number of imports between a function and each file that uses it.

    Files that do not name it, or a neighbour that names it, are one further away.
    """
    parts = re.split(r"^(?:def|class) ", sources[file], flags=re.MULTILINE)[1:]
    names = [function.split(".")[0]]
    for name in names:  # grows in the loop
        inside = {re.match(r"\w+", part)[0] for part in parts if re.search(rf"\b{name}\b", part)}
        names += sorted(inside.difference(names))
    direct = sorted(users.get(file, ()))
    edge = [user for user in direct if re.search(rf"\b({'|'.join(names)})\b", sources[user])]
    found, number, further = {file: 0}, 0, direct
    while edge or further:
        number += 1
        found.update(dict.fromkeys(edge, number))
        further += [user for used in edge for user in sorted(users.get(used, ()))]
        edge, further = [user for user in dict.fromkeys(further) if user not in found], []
    return found


def nearest_tests(
    sources: Mapping[str, str], users: Mapping[str, set[str]], file: str, function: str
) -> list[str]:
    """Return at most six test files, nearest first, after the file itself if it has doctests."""
    path, steps = Path(file), distances(sources, users, file, function)
    mirrors = {f"test_{path.stem}", f"test_{path.parent.name}"}

    def rank(test: str) -> tuple:
        room = Path(test).parent.name
        is_mirror = Path(test).stem in mirrors and room in path.parts
        ways = sum(test in users.get(f, ()) for f in steps if steps[f] == steps[test] - 1)
        return not is_mirror, steps[test], room not in path.parts, -ways, len(sources[test])

    tests = sorted((test for test in steps if Path(test).name.startswith("test_")), key=rank)
    return [file, *tests[:6]] if ">>>" in sources[file] else tests[:6]
