"""The borders between rooms, and the size of things, read from the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import paceline

HERE = Path(__file__).parents[1]
ROOT = Path(paceline.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

CORE = {
    "errors",
    "file_locks",
    "json_files",
    "chains",
    "tree",
    "tree_columns",
    "union",
    "prefix",
    "records",
    "stats",
    "protocols",
    "noise",
    "sampling",
    "scores",
    "warping",
    "logprobs",
    "scout",
    "stopping",
    "typical",
    "verify",
    "generation",
    "defaults",
    "prompt_reading",
    "loop",
}
# What a room may import of paceline, besides itself.
ALLOWED = {
    # Trained drafters shape their trees by what their guesses are worth.
    "drafters": CORE | {"datastore", "kernels", "planning", "trained_configs"},
    "targets": CORE | {"kernels"},
    "kernels": set(),
    "models": {"defaults", "errors", "file_locks", "json_files", "kernels"},
    "references": {"errors"},
    "datastore": {"errors", "file_locks", "kernels", "models", "tree", "tree_columns"},
    "constraints": CORE,
    # Its curves are kept in the cache folder, under what the machine calls itself.
    "planning": CORE | {"kernels", "machine", "models"},
    "opening": CORE | {"drafters", "kernels", "machine", "models", "planning", "targets"},
    # The suites of drafters play on toys.
    "testing": CORE | {"targets"},
    "serve": CORE | {"__init__", "constraints", "messages", "options", "session", "stream", "text"},
    "training": CORE
    | {"drafters", "kernels", "models", "options", "planning", "prompts", "session", "targets"}
    | {"trained_configs"},
}
BACK_ENDS = {"transformers", "tokenizers", "huggingface_hub", "accelerate", "gguf", "safetensors"}

FILE_LINES, FUNCTION_LINES = 300, 50  # of functions without their docstrings
PARAMETERS = 9  # with self
OPENERS = {"api.py load", "models/load.py load_causal_lm", "session.py __init__"}
"""What a user opens things with: by name, and nearly all of it may be left out."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of the file, from the outside inwards."""
    return tuple(ast.walk(parsed(path)))


@cache
def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def room_of(path: Path) -> str:
    """The folder, or the module's own name at the top: "drafters", "tree", "__init__"."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


@cache
def imported(path: Path) -> tuple[tuple[str, int], ...]:
    """Every module that is imported anywhere in the file, in functions and for types as well."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[tuple[str, int]]:
    package = ["paceline", *path.relative_to(ROOT).parts[:-1]]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base, node.lineno
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and name_called(node) == "import_module":
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                yield str(argument.value), node.lineno


def name_called(call: ast.Call) -> str | None:
    """Without what it is an attribute of."""
    return getattr(call.func, "attr", getattr(call.func, "id", None))


@cache
def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["paceline", *parts]).removesuffix(".__init__")


KNOWN = {module_of(path) for path in MODULES}


def modules_imported(path: Path) -> set[str]:
    """Modules of paceline that the file imports; of a package, what it takes from the package's own
    file counts as that file."""
    package = ["paceline", *path.relative_to(ROOT).parts[:-1]]
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            named = {f"{base}.{alias.name}" for alias in node.names}
            found |= named & KNOWN | ({base} if named - KNOWN else set())
    return found & KNOWN - {module_of(path)}


@cache
def is_room(name: str) -> bool:
    return (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()


def rooms_imported(path: Path) -> Iterator[tuple[str, str]]:
    """The rooms of paceline that the file imports, each with where."""
    for module, line in imported(path):
        parts = module.split(".")
        if parts[0] == "paceline" and len(parts) > 1:
            where = f"{name_of(path)}:{line} imports {module}"
            yield (parts[1] if is_room(parts[1]) else "__init__"), where


def functions(of: Iterable[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in of:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    if ast.get_docstring(function) is None:
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


def public_things(
    body: list[ast.stmt],
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Public classes and functions, and the public methods of the former."""
    for node in body:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        if isinstance(node, kinds) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_things(node.body)


def test_there_is_something_to_look_at() -> None:
    """A wrong path would make every test below pass."""
    names = {name_of(path) for path in MODULES}
    assert {f"{module}.py" for module in CORE} <= names
    assert {f"{room}/__init__.py" for room in ALLOWED} <= names
    tree = next(path for path in MODULES if name_of(path) == "verify.py")
    below = {"protocols", "records", "sampling", "stopping", "tree"}
    assert {room for room, _ in rooms_imported(tree)} == below


def test_the_core_imports_nothing_of_paceline_but_the_core() -> None:
    core = [path for path in MODULES if room_of(path) in CORE]
    found = [where for path in core for room, where in rooms_imported(path) if room not in CORE]
    assert found == []


def test_the_core_knows_no_back_end() -> None:
    """Not even for types: it runs on any target."""
    found = [
        f"{name_of(path)}:{line} imports {module}"
        for path in MODULES
        if room_of(path) in CORE
        for module, line in imported(path)
        if module.split(".")[0] in BACK_ENDS
    ]
    assert found == []


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    found = [
        where
        for path in MODULES
        if room_of(path) == room
        for other, where in rooms_imported(path)
        if other not in ALLOWED[room] | {room}
    ]
    assert found == []


def test_drafters_know_no_back_end() -> None:
    found = [
        f"{name_of(path)}:{line} imports {module}"
        for path in MODULES
        if room_of(path) == "drafters"
        for module, line in imported(path)
        if module.split(".")[0] in BACK_ENDS - {"safetensors", "huggingface_hub"}
    ]
    assert found == []


def test_nothing_imports_the_command_line_but_its_entry() -> None:
    found = [
        where
        for path in MODULES
        if room_of(path) not in ("cli", "__main__")
        for room, where in rooms_imported(path)
        if room == "cli"
    ]
    assert found == []


def test_only_the_command_line_and_the_package_itself_import_the_integrations() -> None:
    found = [
        where
        for path in MODULES
        if room_of(path) not in ("integrations", "cli", "__main__", "__init__")
        for room, where in rooms_imported(path)
        if room == "integrations"
    ]
    assert found == []


def without_what_ends(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """What imports one another in circles, and what imports these."""
    left = dict(edges)
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    return left


def test_rooms_do_not_import_one_another_in_a_circle() -> None:
    """Rooms, and the modules at the top, form layers. The package itself only re-exports."""
    edges: dict[str, set[str]] = {}
    for path in MODULES:
        room = room_of(path)
        if room != "__init__":
            others = {other for other, _ in rooms_imported(path)} - {room, "__init__"}
            edges.setdefault(room, set()).update(others)
    assert without_what_ends(edges) == {}


def test_modules_do_not_import_one_another_in_a_circle() -> None:
    """Not within a room either, not in functions and not for types."""
    edges = {module_of(path): modules_imported(path) for path in MODULES}
    assert without_what_ends(edges) == {}


def test_only_the_command_line_prints() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        if room_of(path) not in ("cli", "__main__")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert found == []


def test_no_code_of_strangers_is_run() -> None:
    """`trust_remote_code=True` runs whatever a model's repository holds."""
    found = []
    for path in MODULES:
        for node in nodes(path):
            trusted = isinstance(node, ast.keyword) and node.arg == "trust_remote_code"
            if trusted and not (isinstance(node.value, ast.Constant) and node.value.value is False):
                found.append(f"{name_of(path)}:{node.value.lineno}")
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    named = isinstance(key, ast.Constant) and key.value == "trust_remote_code"
                    if named and not (isinstance(value, ast.Constant) and value.value is False):
                        found.append(f"{name_of(path)}:{node.lineno}")
    assert found == []


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Those of paceline, by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


@cache
def described(of: ast.ClassDef) -> set[str]:
    """The methods that say what they do."""
    return {each.name for each in functions(ast.walk(of)) if ast.get_docstring(each)}


def inherited_description(of: ast.ClassDef, method: str) -> bool:
    """Whether a class above this one describes the method."""
    names = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in of.bases]
    return any(
        method in described(above) or inherited_description(above, method)
        for name in names
        for above in classes().get(name, [])
        if above is not of
    )


def test_everything_public_says_what_it_is() -> None:
    """A method that overrides one need not say it again."""
    found = []
    for path in MODULES:
        module = parsed(path)
        if not ast.get_docstring(module):
            found.append(name_of(path))
        things = [*public_things(module.body)]
        owners = {id(each): node for node in things for each in getattr(node, "body", ())}
        for thing in things:
            owner = owners.get(id(thing))
            inherits = isinstance(owner, ast.ClassDef) and inherited_description(owner, thing.name)
            if not ast.get_docstring(thing) and not inherits:
                found.append(f"{name_of(path)}:{thing.lineno} {thing.name}")
    assert found == []


def test_files_and_functions_fit_into_a_head() -> None:
    programs = [path for room in ("benchmarks", "tools") for path in (HERE / room).glob("*.py")]
    found = []
    for path in [*MODULES, *sorted(programs)]:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES:
            found.append(f"{path.name} has {lines} lines")
        for function in functions(nodes(path)):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            length -= docstring_lines(function)
            if length > FUNCTION_LINES:
                found.append(f"{path.name}:{function.lineno} {function.name} has {length}")
    assert found == []


def test_functions_take_few_parameters() -> None:
    found = {
        f"{name_of(path)} {function.name}"
        for path in MODULES
        for function in functions(nodes(path))
        if len(function.args.args) + len(function.args.kwonlyargs) > PARAMETERS
    }
    assert found == OPENERS
