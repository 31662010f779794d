"""List mutations of a file, draw some from all packages, and find their lines again."""

import ast
import itertools
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import NamedTuple

#: Weights of packages; 1 for others.
WEIGHTS = {
    "cpc/losses": 4, "cpc/negatives": 4, "cpc/train": 4, "cpc/data": 3, "cpc/estimators": 3,
    "cpc/evaluate": 3, "cpc/results": 3, "experiments/kinds": 3, "experiments/training": 2,
}  # fmt: skip
#: Files drawn four times as often as others of their package.
CRITICAL = re.compile(
    "loss|noise_contrastive|mask|rules|sampler|candidates|checkpoint|loop|step|state|split|recordings"
    "|probe|validation|images|tracker|accuracy|reliable|spread|score|compare"
)
#: Benchmarks, which no result depends on.
SKIPPED = ("experiments/bench/",)
#: Mutating such a line could end other processes or delete other files.
DANGEROUS = re.compile(r"kill|rmtree|unlink|rlimit|__name__")
#: Kind, text and replacements of operators.
OPERATORS = {
    "Lt": ("comparison", "<", "<=", ">"), "LtE": ("comparison", "<=", "<", ">"),
    "Gt": ("comparison", ">", ">=", "<"), "GtE": ("comparison", ">=", ">", "<"),
    "Eq": ("comparison", "==", "!="), "NotEq": ("comparison", "!=", "=="),
    "In": ("comparison", "in", "not in"), "NotIn": ("comparison", "not in", "in"),
    "Is": ("comparison", "is", "is not"), "IsNot": ("comparison", "is not", "is"),
    "Add": ("arithmetic", "+", "-"), "Sub": ("arithmetic", "-", "+"),
    "Mult": ("arithmetic", "*", "/"), "Div": ("arithmetic", "/", "*"),
    "FloorDiv": ("arithmetic", "//", "*"), "Mod": ("arithmetic", "%", "//"),
    "Pow": ("arithmetic", "**", "*"), "MatMult": ("arithmetic", "@", "+"),
    "BitAnd": ("mask", "&", "|"), "BitOr": ("mask", "|", "&"), "BitXor": ("mask", "^", "|"),
    "LShift": ("arithmetic", "<<", ">>"), "RShift": ("arithmetic", ">>", "<<"),
    "And": ("boolean", "and", "or"), "Or": ("boolean", "or", "and"),
    "USub": ("sign", "-", ""), "Invert": ("mask", "~", ""), "Not": ("mask", "not", ""),
    "UAdd": ("sign", "+", "-"),
}  # fmt: skip
PAIRS = [("min", "max"), ("minimum", "maximum"), ("any", "all"), ("argmin", "argmax"),
         ("sum", "mean"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("floor", "ceil"),
         ("logical_and", "logical_or")]  # fmt: skip
CALLS = dict(PAIRS) | {second: first for first, second in PAIRS}
MESSAGES = re.compile(r"\b(UserError|print|warn|warnings|logging|info|warning|error)\b")


class Mutation(NamedTuple):
    """The `occurrence`-th line with this text in a function, and its replacement."""

    kind: str
    file: str
    function: str
    line: str
    mutated: str
    occurrence: int


def list_mutations(file: str, source: str) -> list[Mutation]:
    """Return all mutations of a file, including those that keep its bytecode."""
    lines, functions, found = source.split("\n"), functions_of_lines(source), []
    for kind, row, start, end, text in _visit(ast.parse(source), lines):
        raw, function = lines[row - 1].encode(), functions[row]
        line, mutated = raw.decode().strip(), (raw[:start] + text.encode() + raw[end:]).decode()
        if not DANGEROUS.search(line):
            occurrence = _rows(lines, functions, line, function).index(row)
            found.append(Mutation(kind, file, function, line, mutated.strip(), occurrence))
    return found


def functions_of_lines(source: str) -> dict[int, str]:
    names = dict.fromkeys(range(1, source.count("\n") + 2), "")

    def name_lines(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{outer}.{child.name}".lstrip(".")
                names.update(dict.fromkeys(range(child.lineno, child.end_lineno + 1), name))
            name_lines(child, name)

    name_lines(ast.parse(source), "")
    return names


def _rows(lines: list[str], functions: dict[int, str], line: str, function: str) -> list[int]:
    """Return rows with this text in functions with this name."""
    rows = [row for row, text in enumerate(lines, 1) if text.strip() == line]
    return [row for row in rows if f".{functions[row]}".endswith(f".{function}")]


def _visit(node: ast.AST, lines: list[str]) -> Iterator[tuple]:
    """Yield kind, row, first and last byte, and new text of each edit below a node.

    Messages, annotations and imports are not edited.
    """
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
    for part, kind, text in _replacements(node, lines):
        if part.lineno == part.end_lineno:
            yield kind, part.lineno, part.col_offset, part.end_col_offset, text
    yield from _operators(node, lines)
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "exc"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _visit(child, lines)


def _operators(node: ast.AST, lines: list[str]) -> Iterator[tuple]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=rest):
            found = zip(ops, [left, *rest], rest, strict=False)
        case ast.BoolOp(op=op, values=values):
            found = ((op, left, right) for left, right in itertools.pairwise(values))
        case ast.BinOp(left=left, op=op, right=right):
            found = [(op, left, right)]
        case ast.UnaryOp(op=op, operand=operand):
            found = [(op, None, operand)]
        case _:
            return
    for op, left, right in found:
        kind, old, *others = OPERATORS[type(op).__name__]
        begin, row = (
            (left.end_col_offset, left.end_lineno) if left else (node.col_offset, node.lineno)
        )
        start = lines[row - 1].encode().find(old.encode(), begin)
        if row == right.lineno and begin <= start < right.col_offset:
            yield from ((kind, row, start, start + len(old), new) for new in others)


def _replacements(node: ast.AST, lines: list[str]) -> Iterator[tuple[ast.AST, str, str]]:
    """Yield nodes, the kind of mutation and the replacement."""

    def text(part: ast.AST) -> str:
        line = lines[part.lineno - 1].encode()
        return line[part.col_offset : part.end_col_offset].decode(errors="ignore")

    match node:
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr()):
            yield node, "mask", text(left)
        case ast.Constant(value=bool(value)):
            yield node, "constant", str(not value)
        case ast.Constant(value=int(value)):
            yield from ((node, "bound", str(value + change)) for change in (1, -1))
        case ast.Constant(value=float(value)):
            yield node, "constant", str(2 * value or 1.0)
        case ast.keyword(arg="axis", value=value) if re.fullmatch(r"-?\d", text(value)):
            yield value, "axis", "1" if int(text(value)) == 0 else "0"
        case ast.keyword(arg="where" | "mask", value=value) if not isinstance(value, ast.Constant):
            yield value, "mask", f"~({text(value)})"
        case ast.Slice(lower=lower, upper=upper):
            for part, change in ((lower, "+ 1"), (upper, "- 1")):
                if part and not isinstance(part, ast.Constant):
                    yield part, "bound", f"({text(part)}) {change}"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                yield test, "mask", f"not {text(test)}"
        case ast.Return(value=ast.Tuple(elts=[first, second, *rest]) as value):
            yield value, "returned", f"({', '.join(map(text, [second, first, *rest]))})"
        case ast.Return(value=value) if value and text(value) != "None":
            yield value, "returned", "None"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue():
            yield node, "dropped", "pass"
        case ast.Assign(targets=[ast.Name(id)], value=value):
            if re.search(rf"\b{id}\b", text(value)):
                yield node, "dropped", "pass"  # the name keeps its value
        case ast.Call(func=ast.Name() | ast.Attribute() as func, args=args):
            path, dot, name = text(func).rpartition(".")
            if name in CALLS:
                yield func, "call", f"{path}{dot}{CALLS[name]}"
            if name == "where" and len(args) == 3:
                yield args[0], "mask", f"~({text(args[0])})"
                yield node, "mask", text(args[1])
            if name == "range":
                stop = args[len(args) > 1]
                yield stop, "bound", f"({text(stop)}) - 1"


def room_of(file: str) -> str:
    return "/".join(Path(file).parent.parts[:2])


def choose(
    sources: Mapping[str, str], seed: int, number: int, only: Iterable[str] = ()
) -> list[Mutation]:
    """Draw mutations of different lines from all packages by weight, in random order."""
    rooms: dict[str, list[str]] = {}
    for file in sorted(set(only) or sources):
        if not file.startswith(SKIPPED):
            rooms.setdefault(room_of(file), []).append(file)
    total = sum(WEIGHTS.get(room, 1) for room in rooms)
    chosen, passed = [], 0
    for room, files in rooms.items():
        before, passed = passed, passed + WEIGHTS.get(room, 1)
        share = round(number * passed / total) - round(number * before / total)
        texts = {file: sources[file] for file in files}
        chosen += _draw(texts, random.Random(f"{seed} {room}"), share)
    random.Random(seed).shuffle(chosen)
    return chosen


def _draw(sources: Mapping[str, str], rng: random.Random, number: int) -> Iterator[Mutation]:
    """Draw a file, then a kind, so that no kind dominates."""
    left = {file: list_mutations(file, source) for file, source in sources.items()}
    while number and any(left.values()):
        files = [file for file in left if left[file]]
        weights = [len(left[f]) ** 0.5 * (4 if CRITICAL.search(Path(f).stem) else 1) for f in files]
        (file,) = rng.choices(files, weights)
        kind = rng.choice(sorted({mutation.kind for mutation in left[file]}))
        drawn = rng.choice([mutation for mutation in left[file] if mutation.kind == kind])
        left[file].remove(drawn)
        if changes_bytecode(sources[file], drawn):
            left[file] = [m for m in left[file] if m[2:4] != drawn[2:4]]
            number -= 1
            yield drawn


def changes_bytecode(source: str, mutation: Mutation) -> bool:
    """Return whether a mutation compiles to different bytecode."""
    file, row = locate({mutation.file: source}, mutation)
    try:
        mutated = compile(mutate(source, row, mutation), file, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return _bytecode(mutated) != _bytecode(compile(source, file, "exec", dont_inherit=True))


def _bytecode(code: CodeType) -> tuple:
    consts = [
        _bytecode(c) if isinstance(c, CodeType) else (type(c), repr(c)) for c in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, consts


def locate(sources: Mapping[str, str], mutation: Mutation) -> tuple[str, int] | None:
    """Return the file and row of a mutation's line, wherever its function is."""
    name = mutation.function
    for file in (mutation.file, *sorted(sources)):
        if mutation.line in sources.get(file, ""):
            functions = functions_of_lines(sources[file])
            if rows := _rows(sources[file].split("\n"), functions, mutation.line, name):
                return file, rows[min(mutation.occurrence, len(rows) - 1)]
        name = mutation.function.split(".")[-1]
    return None


def mutate(source: str, row: int, mutation: Mutation) -> str:
    lines = source.split("\n")
    lines[row - 1] = lines[row - 1].replace(mutation.line, mutation.mutated)
    return "\n".join(lines)
