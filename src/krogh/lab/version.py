"""The code version of an experiment: a hash of the code it uses, blind to comments and docstrings."""

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# An experiment's result does not depend on how it is drawn, stored, judged or called.
LAB = ("claims", "compare", "environment", "figures", "ledger", "report", "store", "system", "version")
NOT_USED = {"krogh.lab", "krogh.cli", "krogh.errors", "krogh.files", *(f"krogh.lab.{name}" for name in LAB)}
REGISTRATION = {"experiment", "claim", "figure"}


@functools.cache
def code_version(function: Callable[..., Any]) -> str:
    """Hash of the function, of what it names in the systems' modules, and of every krogh module these import.

    Inside krogh.systems code is followed name by name, so that a change to one experiment leaves the results
    of its neighbours valid; any other krogh module counts whole, with all that it imports.
    """
    parts = dict[str, str]()
    todo: list[tuple[str, str | None]] = [(function.__module__, function.__name__)]
    while todo:
        module, name = todo.pop()
        label = f"{module}:{name or ''}"
        if label in parts or module in NOT_USED:
            continue
        tree = _tree(module)
        if tree is None:
            continue
        nodes = _definitions(module).get(name, []) if name else tree.body
        parts[label] = "".join(ast.dump(node) for node in nodes)
        package = module if _is_package(module) else module.rpartition(".")[0]
        for node in nodes:
            todo += _imports(node, package)
            # inside its own module, a name used is followed to its definition
            used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} if name else set()
            todo += [(module, other) for other in used if other in _definitions(module)]
    text = "\n".join(f"{label} {parts[label]}" for label in sorted(parts))
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _source(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _is_package(module: str) -> bool:
    source = _source(module)
    return source is not None and source.name == "__init__.py"


@functools.cache
def _tree(module: str) -> ast.Module | None:
    """The module's syntax tree without docstrings and without the decorators that register experiments."""
    source = _source(module)
    if source is None:
        return None
    tree = ast.parse(source.read_text())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = [d for d in node.decorator_list if not _registers(d)]
    return tree


def _registers(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr in REGISTRATION


@functools.cache
def _definitions(module: str) -> dict[str, list[ast.stmt]]:
    """The top-level statements of a module that define each name, imports included."""
    found: dict[str, list[ast.stmt]] = {}
    tree = _tree(module)
    for node in tree.body if tree else []:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                single = ast.Import([alias])
                if isinstance(node, ast.ImportFrom):
                    single = ast.ImportFrom(node.module, [alias], node.level)
                found.setdefault(alias.asname or alias.name.partition(".")[0], []).append(single)
            continue
        else:
            names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        for name in names:
            found.setdefault(name, []).append(node)
    return found


def _imports(tree: ast.AST, package: str) -> Iterator[tuple[str, str | None]]:
    """The krogh modules imported anywhere below a node; one name of them where they belong to a system."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.startswith("krogh"))
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                if not module.startswith("krogh"):
                    continue
                if _source(f"{module}.{alias.name}"):
                    yield f"{module}.{alias.name}", None
                else:
                    yield module, alias.name if module.startswith("krogh.systems.") else None
