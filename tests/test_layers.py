"""Imports point one way: this table is the map of the package, and the heavy imports have their places."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "layactl"

# Lowest first. A unit (a folder or a file right below layactl/) imports from rows below its own; row-mates never import
# each other: what two of them need moves down.
ROWS = (
    ("errors",),
    ("durable", "sigterm"),
    ("core",),
    ("layouts", "checkpoint", "gguf_file", "kernels"),
    ("engine", "convert"),
    ("router", "reporting", "client", "reference"),
    ("labelled",),
    ("decide", "serve", "parity", "bench", "calib", "train"),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
ROW_OF = {unit: n for n, row in enumerate(ROWS) for unit in row}

# The only files that load torch when they are imported: nothing imports them before a model is loaded.
TENSOR_FILES = (
    *("core/encoder.py", "core/rope.py", "layouts/*/head.py", "kernels/*.py", "engine/forward.py"),
    *(f"train/{name}.py" for name in ("batches", "evaluate", "features", "loop", "loss", "network", "run")),
)
# Never imported to serve an answer: the reference lives in tests and in a folder of its own.
REFERENCE = {"laya", "transformers"}


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def unit_of(module: str) -> str:
    """layactl.core.rope -> core; the package's own names (layactl.__version__, layactl.load) -> __init__."""
    name = module.split(".")[1] if "." in module else "__init__"
    return name if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists() else "__init__"


def imports(path: Path, *, at_start_only: bool) -> Iterator[str]:
    """Names of the modules a file imports; at_start_only: those imported with it, and not inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    later = set()
    for node in ast.walk(tree):
        type_checking = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        if type_checking or (at_start_only and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            later |= set(ast.walk(node))
    for node in ast.walk(tree):
        if node in later:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            # `from layactl.layouts import laya` imports a module too.
            yield from (
                f"{node.module}.{alias.name}" for alias in node.names if is_module(f"{node.module}.{alias.name}")
            )


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def test_every_folder_and_file_has_its_row():
    units = {unit_of(module_of(path)) for path in files()}
    assert units - set(ROW_OF) == set()


@pytest.mark.parametrize("unit", sorted(unit for unit in ROW_OF if (PACKAGE / unit).is_dir()))
def test_a_folder_imports_only_from_rows_below(unit: str):
    wrong = []
    for path in sorted((PACKAGE / unit).rglob("*.py")):
        for module in imports(path, at_start_only=False):
            if module.split(".")[0] != "layactl":
                continue
            other = unit_of(module)
            # The version is a constant of the package itself, free of imports.
            own = other == unit or module == "layactl"
            if not own and ROW_OF[other] >= ROW_OF[unit]:
                wrong.append(f"{module_of(path)} imports {module}")
    assert wrong == []


def test_below_the_command_line_only_the_version_comes_from_the_package_itself():
    names = set()
    for path in files():
        if unit_of(module_of(path)) not in ("cli", "__init__", "__main__"):
            found = re.findall(r"^\s*from layactl import (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            names |= {name.strip() for line in found for name in line.split(",")}
    assert names <= {"__version__"}


def test_no_module_waits_for_itself():
    graph = {module_of(path): set(imports(path, at_start_only=True)) for path in files()}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above, module))
        if module not in done:
            for other in sorted(graph[module] & set(graph) - {module}):
                # A package's own __init__ is loaded before its modules; importing it from below is no cycle.
                if not module.startswith(f"{other}."):
                    visit(other, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_only_the_tensor_files_load_torch_when_imported():
    loading = {
        str(path.relative_to(PACKAGE))
        for path in files()
        if any(name.split(".")[0] == "torch" for name in imports(path, at_start_only=True))
    }
    assert {path for path in loading if not any(fnmatch(path, pattern) for pattern in TENSOR_FILES)} == set()
    # Each pattern is in use: the table does not outlive the files.
    assert all(any(fnmatch(path, pattern) for path in loading) for pattern in TENSOR_FILES)


def test_the_reference_is_no_part_of_the_product():
    using = {
        module_of(path)
        for path in files()
        if unit_of(module_of(path)) != "reference"
        and REFERENCE & {name.split(".")[0] for name in imports(path, at_start_only=False)}
    }
    assert using == set()


UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "os.system", "numpy.load", "np.load"}


def test_nothing_read_is_ever_executed():
    unsafe = []
    for path in files():
        unsafe += [f"{path}: {name}" for name in imports(path, at_start_only=False) if name in UNSAFE_MODULES]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in UNSAFE_CALLS:
                unsafe.append(f"{path}:{node.lineno}: {ast.unparse(node.func)}")
    assert unsafe == []
