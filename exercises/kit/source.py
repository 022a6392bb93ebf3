"""Cutting functions out of source text and putting others in: everything by syntax tree, nothing by eye.

The text outside of what is replaced stays as it is, byte for byte, so line numbers and comments survive.
"""

import ast
import builtins
import textwrap
from collections.abc import Collection, Container, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class SourceError(Exception):
    """Something that is named in the course is not in the code; the message says what."""


def find(tree: ast.AST, symbol: str) -> Definition | None:
    """The definition of a dotted name, for example ``Scheduler.schedule``, or None."""
    node: ast.AST | None = tree
    for name in symbol.split("."):
        body = getattr(node, "body", [])
        node = next((child for child in body if isinstance(child, Definition) and child.name == name), None)
    return node if isinstance(node, Definition) else None


def span(node: Definition) -> tuple[int, int]:
    """First and last line number of a definition, decorators included."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), node.end_lineno or 0


@lru_cache(maxsize=512)
def cut(text: str, symbol: str) -> tuple[str, int]:
    """The code of a definition without its indentation, and its first line number.

    Raises:
        SourceError: there is none of that name.
    """
    node = find(ast.parse(text), symbol)
    if node is None:
        raise SourceError(f"no {symbol}")
    first, last = span(node)
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : last])), first


def symbol_source(root: Path, path: str, symbol: str) -> tuple[str, int]:
    """Cut a function, class or method out of a module.

    Args:
        root: the folder that ``path`` starts from.
        path: a Python file, for example ``nanovllm/engine/scheduler.py``.
        symbol: its name in the module, dotted for a method, for example ``Scheduler.schedule``.

    Returns:
        The code, decorators included and without its indentation, and its first line number.

    Raises:
        SourceError: there is no such file, or no such function or class in it.
    """
    file = root / path
    if not file.is_file():
        raise SourceError(f"there is no file {path}")
    try:
        return cut(file.read_text(encoding="utf-8"), symbol)
    except SourceError:
        raise SourceError(f"{path} defines no {symbol}") from None


def _docstring(node: ast.AST) -> ast.Expr | None:
    first = node.body[0] if isinstance(node, Definition) else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first
    return None


def without_docstring(code: str) -> str:
    """A function's code without its docstring."""
    docstring = _docstring(ast.parse(code).body[0])
    lines = code.splitlines()
    return "\n".join([*lines[: docstring.lineno - 1], *lines[docstring.end_lineno :]]) if docstring else code


def make_stub(code: str, message: str) -> str:
    """Keep the signature and the docstring of a function; what it does is replaced by raising `message`."""
    (function,) = ast.parse(code).body
    assert isinstance(function, ast.FunctionDef)
    docstring, first = _docstring(function), function.body[0]
    kept = docstring.end_lineno if docstring else first.lineno - 1
    indent = " " * first.col_offset
    return "\n".join([*code.splitlines()[:kept], f'{indent}raise NotImplementedError("{message}")'])


def replace_body(code: str, body: str) -> str:
    """Keep the signature of a function and its decorators, and nothing else; `body` is what it does now."""
    (function,), (other,) = ast.parse(code).body, ast.parse("def _():\n" + textwrap.indent(body, "    ")).body
    assert isinstance(function, ast.FunctionDef) and isinstance(other, ast.FunctionDef)
    function.body = other.body
    return ast.unparse(function)


def is_stub(function: Definition) -> bool:
    """Whether a function does nothing but raise NotImplementedError."""
    body = function.body[1:] if _docstring(function) else function.body
    return len(body) == 1 and isinstance(body[0], ast.Raise) and "NotImplementedError" in ast.unparse(body[0])


def is_empty(function: Definition) -> bool:
    """Whether a function does nothing: its body is `pass`, `...`, a docstring or a bare `return`."""
    nothing = (ast.Pass, ast.Return, ast.Expr)
    values = [getattr(node, "value", None) for node in function.body]
    return all(isinstance(node, nothing) for node in function.body) and all(
        value is None or (isinstance(value, ast.Constant) and (value.value is None or isinstance(node, ast.Expr)))
        for node, value in zip(function.body, values, strict=True)
    )


def same_code(one: Definition, other: Definition) -> bool:
    """Whether two functions are the same but for comments, layout, docstrings and annotations."""
    return _bare(one) == _bare(other)


def _bare(node: Definition) -> str:
    copy = ast.parse(ast.unparse(node)).body[0]
    for child in ast.walk(copy):
        if isinstance(child, Definition) and (docstring := _docstring(child)):
            child.body.remove(docstring)
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            child.returns = None
        if isinstance(child, ast.arg):
            child.annotation = None
    return ast.dump(copy)


def indent(code: str, prefix: str) -> list[str]:
    """Lines of `code`, indented by `prefix`; the inside of multi-line strings stays as it is, but for docstrings."""
    tree = ast.parse(code)
    docstrings = {id(text.value) for node in ast.walk(tree) if (text := _docstring(node))}
    inside: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in docstrings
        if is_text or isinstance(node, ast.JoinedStr):
            inside.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    lines = enumerate(code.splitlines(), start=1)
    return [prefix + line if line.strip() and number not in inside else line for number, line in lines]


def origin(node: ast.ImportFrom, module: str) -> str:
    """Full name of the module that is imported from, in `module`."""
    parent = module.rsplit(".", node.level)[0] + "." if node.level else ""
    return f"{parent}{node.module or ''}".rstrip(".")


def bindings(nodes: Iterable[ast.AST], module: str, own: str = "") -> dict[str, str]:
    """The names that statements of `module` bind, and what each is: equal texts mean the same thing.

    Args:
        own: what defines a name if it is not imported; the module unless told otherwise.
    """
    own = own or module
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: f"{origin(node, module)}:{a.name}" for a in node.names}
        elif isinstance(node, Definition):
            found[node.name] = f"{own}:{node.name}"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = f"{own}:{node.id}"
        elif not isinstance(node, ast.comprehension | ast.Lambda):
            found |= bindings(ast.iter_child_nodes(node), module, own)
    return found


def localize(code: str, path: str, taken: Collection[str], known: Container[str]) -> str:
    """`code` as it has to read in a file of an assembled package; its lines stay where they are.

    Imports of the engine become relative, names that the file has are not imported once more, and annotations that
    cannot be looked up yet become strings.

    Args:
        path: the file in the package.
        taken: names that the file has.
        known: names that can be looked up where the code stands.
    """
    edits: list[tuple[Any, str]] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            new = _import(node, path, taken)
            edits += [(node, new)] if new != ast.unparse(node) else []
        for field in ("annotation", "returns"):
            annotation = getattr(node, field, None)
            names = [part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)] if annotation else []
            if annotation and any(name not in known and not hasattr(builtins, name) for name in names):
                edits.append((annotation, repr(ast.unparse(annotation))))
    lines = code.encode().split(b"\n")  # columns count bytes
    for node, new in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        first, last = node.lineno - 1, node.end_lineno - 1
        line = lines[first][: node.col_offset] + new.encode() + lines[last][node.end_col_offset :]
        lines[first : last + 1] = [line, *[b""] * (last - first)]
    return b"\n".join(lines).decode()


def _import(node: ast.Import | ast.ImportFrom, path: str, taken: Collection[str]) -> str:
    names = [alias for alias in node.names if not bindings([_only(node, alias)], "").keys() <= set(taken)]
    if isinstance(node, ast.ImportFrom):
        root, _, rest = (node.module or "").partition(".")
        if root == "nanovllm" and not node.level:
            node = ast.ImportFrom(rest or None, [], path.count("/") + 1)
        return ast.unparse(_only(node, *names)) if names else "pass"
    parts = []
    for alias in names:
        root, _, rest = alias.name.partition(".")
        name = "__name__.partition('.')[0]" + (f" + '.{rest}'" if rest else "")
        what = f"__import__({name}, fromlist=['_'])" if alias.asname else f"__import__({name})"
        ours = f"{alias.asname or root} = {what}"
        parts.append(ours if root == "nanovllm" else ast.unparse(_only(node, alias)))
    return "; ".join(parts) or "pass"


def _only(node: Any, *names: ast.alias) -> Any:
    """An import with fewer names."""
    return type(node)(**{field: getattr(node, field, None) for field in node._fields} | {"names": list(names)})


@lru_cache(maxsize=64)
def imports_of(text: str, module: str) -> tuple[str, ...]:
    """Import lines that give a file the same names as `module` has, whose source is `text`.

    Relative imports become absolute; what the module defines itself is imported from it. Levers are left out: a
    learner's function knows none.
    """
    lines, own = [], []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            lines.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "levers"):
            names = ", ".join(ast.unparse(alias) for alias in node.names if alias.name != "TYPE_CHECKING")
            lines += [f"from {origin(node, module)} import {names}"] if names else []
        elif isinstance(node, Definition) and not module.endswith(".labs"):  # whose functions are answers
            own.append(node.name)
        elif isinstance(node, ast.Assign):
            own += [target.id for target in node.targets if isinstance(target, ast.Name) and target.id != "logger"]
    return tuple([*lines, f"from {module} import {', '.join(own)}"] if own else lines)


def only(imports: Iterable[str], names: Container[str]) -> tuple[str, ...]:
    """Import lines that bring some names, and no others."""
    kept = []
    for line in imports:
        (node,) = ast.parse(line).body
        assert isinstance(node, ast.Import | ast.ImportFrom)
        node.names = [alias for alias in node.names if (alias.asname or alias.name) in names]
        kept += [ast.unparse(node)] if node.names else []
    return tuple(kept)
