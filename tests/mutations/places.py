"""List mutations of a file, draw some from all packages, and find their lines again."""

import ast
import collections
import functools
import itertools
import random
import re
from pathlib import Path
from typing import NamedTuple

#: Weights of packages; 1 for others.
WEIGHTS = {
    "cpc/losses": 4, "cpc/negatives": 4, "cpc/train": 4, "cpc/data": 3, "cpc/estimators": 3,
    "cpc/evaluate": 3, "cpc/results": 3, "experiments/kinds": 3, "experiments/training": 2,
}  # fmt: skip
#: Benchmarks, which no result depends on.
SKIPPED = "experiments/bench/"
#: Mutating such a line could end other processes or delete other files.
DANGEROUS = re.compile(r"kill|rmtree|unlink|rlimit|__name__")
MESSAGES = re.compile(r"\b(UserError|print|warn|warnings|logging|info|warning|error)\b")
#: Kind of mutation and replacements of an operator.
OPERATORS = {
    ast.Lt: ("comparison", ast.LtE, ast.Gt), ast.LtE: ("comparison", ast.Lt, ast.Gt),
    ast.Gt: ("comparison", ast.GtE, ast.Lt), ast.GtE: ("comparison", ast.Gt, ast.Lt),
    ast.Eq: ("comparison", ast.NotEq), ast.NotEq: ("comparison", ast.Eq),
    ast.In: ("comparison", ast.NotIn), ast.NotIn: ("comparison", ast.In),
    ast.Is: ("comparison", ast.IsNot), ast.IsNot: ("comparison", ast.Is),
    ast.Add: ("arithmetic", ast.Sub), ast.Sub: ("arithmetic", ast.Add),
    ast.Mult: ("arithmetic", ast.Div), ast.Div: ("arithmetic", ast.Mult),
    ast.FloorDiv: ("arithmetic", ast.Mult), ast.Mod: ("arithmetic", ast.FloorDiv),
    ast.Pow: ("arithmetic", ast.Mult), ast.MatMult: ("arithmetic", ast.Add),
    ast.LShift: ("arithmetic", ast.RShift), ast.RShift: ("arithmetic", ast.LShift),
    ast.BitAnd: ("mask", ast.BitOr), ast.BitOr: ("mask", ast.BitAnd),
    ast.BitXor: ("mask", ast.BitOr),
    ast.And: ("boolean", ast.Or), ast.Or: ("boolean", ast.And),
}  # fmt: skip
PAIRS = [("min", "max"), ("minimum", "maximum"), ("any", "all"), ("argmin", "argmax"),
         ("sum", "mean"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("floor", "ceil"),
         ("logical_and", "logical_or")]  # fmt: skip
CALLS = dict(PAIRS) | {second: first for first, second in PAIRS}


class Mutation(NamedTuple):
    """The `occurrence`-th line with this text in a function, and its replacement."""

    kind: str
    file: str
    function: str
    line: str
    mutated: str
    occurrence: int


def list_mutations(file, source):
    lines, functions, found = source.split("\n"), name_lines(source), []
    for node, kind, new in itertools.chain.from_iterable(map(edits, walk(ast.parse(source)))):
        line, function = lines[node.lineno - 1], functions[node.lineno - 1]
        if node.lineno == node.end_lineno and not DANGEROUS.search(line):
            raw, text = line.encode(), new if isinstance(new, str) else ast.unparse(new)
            mutated = raw[: node.col_offset] + text.encode() + raw[node.end_col_offset :]
            line, mutated = line.strip(), mutated.decode().strip()
            occurrence = find_rows(source, line, function).index(node.lineno)
            found.append(Mutation(kind, file, function, line, mutated, occurrence))
    return found


def walk(node):
    """Yield nodes except messages, annotations and imports."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assign(targets=[ast.Name("__all__")]):
            return
        case ast.Assign(targets=[ast.Name(id)], value=ast.BinOp(op=ast.BitOr())) if id.istitle():
            return  # a union of types
        case ast.Expr(value=ast.Call(func=func)) | ast.Call(func=func):
            if MESSAGES.search(ast.unparse(func)):
                return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "exc"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child)


def edits(node):
    """Yield parts of a node, the kind of mutation and their replacement."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=rest):
            for i, op in enumerate(ops):
                for new in OPERATORS[type(op)][1:]:
                    changed = [*ops[:i], new(), *ops[i + 1 :]]
                    yield node, "comparison", ast.Compare(left, changed, rest)
        case ast.BoolOp(op=op, values=values):
            yield node, "boolean", ast.BoolOp(OPERATORS[type(op)][1](), values)
        case ast.BinOp(left=left, op=op, right=right):
            kind, new = OPERATORS[type(op)]
            yield node, kind, ast.BinOp(left, new(), right)
            if kind == "mask":
                yield node, kind, left
        case ast.UnaryOp(op=op, operand=operand):
            yield node, "sign" if isinstance(op, ast.USub) else "mask", f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield node, "constant", str(not value)
        case ast.Constant(value=int(value)):
            yield from ((node, "bound", str(value + change)) for change in (1, -1))
        case ast.Constant(value=float(value)):
            yield node, "constant", str(2 * value or 1.0)
        case ast.keyword(arg="axis", value=ast.Constant(value=int(value)) as part):
            yield part, "axis", str(int(value == 0))
        case ast.keyword(arg="where" | "mask", value=value) if not isinstance(value, ast.Constant):
            yield value, "mask", ast.UnaryOp(ast.Invert(), value)
        case ast.Slice(lower=lower, upper=upper):
            for part, op in ((lower, ast.Add()), (upper, ast.Sub())):
                if part and not isinstance(part, ast.Constant):
                    yield part, "bound", ast.BinOp(part, op, ast.Constant(1))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                yield test, "mask", ast.UnaryOp(ast.Not(), test)
        case ast.Return(value=ast.Tuple(elts=[first, second, *rest]) as value):
            if ast.unparse(first) != ast.unparse(second):
                yield value, "returned", ast.Tuple([second, first, *rest])
        case ast.Return(value=value) if value and ast.unparse(value) != "None":
            yield value, "returned", "None"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue():
            yield node, "dropped", "pass"
        case ast.Assign(targets=[ast.Name(id)], value=value):
            if re.search(rf"\b{id}\b", ast.unparse(value)):
                yield node, "dropped", "pass"  # the name keeps its value
        case ast.Call(func=ast.Name() | ast.Attribute() as func, args=args):
            path, dot, name = ast.unparse(func).rpartition(".")
            if name in CALLS:
                yield func, "call", f"{path}{dot}{CALLS[name]}"
            if name == "where" and len(args) == 3:
                yield args[0], "mask", ast.UnaryOp(ast.Invert(), args[0])
                yield node, "mask", args[1]
            if name == "range":
                stop = args[len(args) > 1]
                yield stop, "bound", ast.BinOp(stop, ast.Sub(), ast.Constant(1))


@functools.cache
def name_lines(source):
    """Return the qualified name of the function or class of each line."""
    names = [""] * (source.count("\n") + 1)
    for node in ast.walk(ast.parse(source)):  # outer ones first
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for row in range(node.lineno - 1, node.end_lineno):
                names[row] = f"{names[row]}.{node.name}".lstrip(".")
    return names


def find_rows(source, line, function):
    """Return the rows with this text in functions with this name."""
    rows = [row for row, text in enumerate(source.split("\n"), 1) if text.strip() == line]
    names = name_lines(source) if rows else []
    return [row for row in rows if f".{names[row - 1]}".endswith(f".{function}")]


def package_of(file):
    return "/".join(Path(file).parent.parts[:2])


def choose(sources, seed, number, only=()):
    """Draw mutations of different lines: a package, a file and a kind, so that none dominates."""
    rng, chosen = random.Random(seed), []
    left = {
        file: list_mutations(file, sources[file])
        for file in sorted(set(only) or sources) if not file.startswith(SKIPPED)
    }  # fmt: skip
    while len(chosen) < number and any(left.values()):
        packages = collections.defaultdict(list)
        for file in filter(left.get, left):
            packages[package_of(file)].append(file)
        (name,) = rng.choices([*packages], [WEIGHTS.get(package, 1) for package in packages])
        (file,) = rng.choices(packages[name], [len(left[file]) ** 0.5 for file in packages[name]])
        kind = rng.choice(sorted({mutation.kind for mutation in left[file]}))
        drawn = rng.choice([mutation for mutation in left[file] if mutation.kind == kind])
        left[file] = [m for m in left[file] if m[2:4] != drawn[2:4]]
        chosen.append(drawn)
    return chosen


def locate(sources, mutation):
    """Return the file and row of a mutation's line, wherever its function is."""
    name = mutation.function
    for file in (mutation.file, *sorted(sources)):
        if rows := find_rows(sources.get(file, ""), mutation.line, name):
            return file, rows[min(mutation.occurrence, len(rows) - 1)]
        name = mutation.function.split(".")[-1]
    return None


def mutate(source, row, mutation):
    lines = source.split("\n")
    lines[row - 1] = lines[row - 1].replace(mutation.line, mutation.mutated)
    return "\n".join(lines)


def nearest_tests(sources, file, function):
    """Return the file itself if it has doctests, and at most six test files.

    First those with its name or its folder's, then those that name its module, and the function or
    a neighbour that names it.
    """
    path, parts = Path(file), re.split(r"^(?:def|class) ", sources[file], flags=re.MULTILINE)[1:]
    names = [function.split(".")[0]]
    for name in names:  # grows in the loop
        inside = {re.match(r"\w+", part)[0] for part in parts if re.search(rf"\b{name}\b", part)}
        names += sorted(inside.difference(names))
    module = rf"\b({path.stem}|{path.parent.name})\b"

    def rank(test):
        is_near = Path(test).parent.name in path.parts
        is_mirror = Path(test).stem in (f"test_{path.stem}", f"test_{path.parent.name}")
        found = [re.search(rf"\b({'|'.join(names)})\b", sources[test]),
                 re.search(module, sources[test])]  # fmt: skip
        return not (is_near and is_mirror), found.count(None), not is_near, len(sources[test])

    tests = [test for test in sources if Path(test).name.startswith("test_")]
    doctests = [file] if ">>>" in sources[file] else []
    return doctests + sorted(tests, key=rank)[:6]
