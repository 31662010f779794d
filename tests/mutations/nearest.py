"""Find the tests nearest to a function by imports."""

import ast
import re
from pathlib import Path


def find_users(sources):
    """Return the files that use each file, resolving exports of packages."""
    modules = {f[:-3].replace("/", ".").removesuffix(".__init__"): f for f in sources}
    trees = {file: ast.parse(text) for file, text in sources.items()}
    exports = {
        file: {alias.asname or alias.name: (node.module, alias.name)
               for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        for file, tree in trees.items() if file.endswith("__init__.py")
    }  # fmt: skip

    def resolve(module, name):
        file = modules.get(f"{module}.{name}")
        if not file and name in exports.get(modules.get(module), ()):
            return resolve(*exports[modules[module]][name])
        return file or modules.get(module)

    def used_by(file):
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

    users = {}
    for file in sources:
        for used in used_by(file):
            users.setdefault(used, set()).add(file)
    return users


def nearest_tests(sources, users, file, function):
    """Return at most six test files, nearest first, after the file itself if it has doctests.

    Files that do not name the function, or a neighbour that names it, are one import further away.
    """
    parts = re.split(r"^(?:def|class) ", sources[file], flags=re.MULTILINE)[1:]
    names = [function.split(".")[0]]
    for name in names:  # grows in the loop
        inside = {re.match(r"\w+", part)[0] for part in parts if re.search(rf"\b{name}\b", part)}
        names += sorted(inside.difference(names))
    pattern = re.compile(rf"\b({'|'.join(names)})\b")
    steps, queue = {file: 0}, [file]
    for used in queue:  # grows in the loop
        for user in sorted(users.get(used, set()).difference(steps)):
            steps[user] = steps[used] + 1
            queue.append(user)
    path = Path(file)

    def rank(test):
        room = Path(test).parent.name
        mirrors = {f"test_{path.stem}", f"test_{path.parent.name}"}
        is_mirror = Path(test).stem in mirrors and room in path.parts
        distance = steps[test] + (not pattern.search(sources[test]))
        return not is_mirror, distance, room not in path.parts, len(sources[test])

    tests = sorted((test for test in steps if Path(test).name.startswith("test_")), key=rank)
    return [file, *tests[:6]] if ">>>" in sources[file] else tests[:6]
