"""Docstrings of public functions name what goes in, what comes out and what is raised (Google style).

The rule, for every public function of a module and every public method of a public class in the package's two trees and
in ``grafana/``, and for each constructor (in the docstring of the class, or of ``__init__``):

- ``Args:`` has a line for each parameter, and none for one that is not there. Not for ``self``, ``cls`` and what is not
  used (an underscore in front).
- ``Returns:`` (or ``Yields:``) is there if something is returned. Without it: None and bool; and a plain ``int``,
  ``float``, ``str`` or ``bytes`` whose first sentence begins with what is returned ("The …", "How …": ``NOUN``). Of one
  that may be None, the text says when.
- ``Raises:`` names each exception of a ``raise`` in the function's own body. A bare ``raise``, and one of a variable,
  pass on what another function raised: they need none.

Without sections: properties and overloads; commands of click, whose docstring is their help; a method that a base class
or a Protocol of the trees documents (one that the class does not name counts if the class has all methods of it). What
the functions of a module have in common may be said once, in the same sections of the module's docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[2]
TREES = ("probe/infercanary", "exporter/infercanary", "grafana")

NOT_YET: frozenset[str] = frozenset()
"""Packages whose docstrings are still to be written."""

EXEMPT = re.compile(r"(\w+\.)?(cached_property|property|overload)$|\w+\.setter$|click\.")
"""Decorators of functions that need no sections."""

NOUN = re.compile(
    r"(Return )?(``|(a|all|an|each|every|how|its|one|the|what|when|where|which)\b)", re.IGNORECASE
)
"""A first sentence that begins so says what is returned."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Method:
    """A method, and what a class that has it too must agree with."""

    parameters: tuple[str, ...]
    has_docstring: bool


@dataclass
class Class:
    """A class of the trees, as far as it documents methods of others."""

    bases: tuple[str, ...]
    methods: dict[str, Method] = field(default_factory=dict)


Classes: TypeAlias = dict[str, list[Class]]


def last_name(node: ast.expr) -> str:
    """The last part of a dotted name, without a call or brackets; empty for anything else."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def parameters(function: Function) -> tuple[str, ...]:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    names = [a.arg for a in named if a.arg not in ("self", "cls")]
    names += [a.arg for a in (given.vararg, given.kwarg) if a]
    return tuple(name for name in names if not name.startswith("_"))


def classes(trees: dict[str, ast.Module]) -> Classes:
    """Every class, by its name: private ones of two modules may share one."""
    found: Classes = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                one = Class(tuple(map(last_name, node.bases)), methods(node))
                found.setdefault(node.name, []).append(one)
    return found


def methods(node: ast.ClassDef) -> dict[str, Method]:
    """Those of a class, without properties: of these a Protocol's may be plain attributes elsewhere."""
    return {
        method.name: Method(parameters(method), ast.get_docstring(method) is not None)
        for method in node.body
        if isinstance(method, Function)
        and not any(EXEMPT.match(ast.unparse(decorator)) for decorator in method.decorator_list)
    }


def has_all(one: Class, wanted: Class) -> bool:
    """Whether a class has every method of a Protocol, with the same parameters."""
    mine = {name: method.parameters for name, method in one.methods.items()}
    return all(mine.get(name) == method.parameters for name, method in wanted.methods.items())


def is_documented_elsewhere(name: str, one: Class, known: Classes) -> bool:
    """Whether a base class, or a Protocol whose methods a class has, has this method's docstring."""
    bases = [base for named in one.bases for base in known.get(named, ())]
    if any(name in base.methods and base.methods[name].has_docstring for base in bases):
        return True
    if any(is_documented_elsewhere(name, base, known) for base in bases):
        return True
    protocols = (each for named in known.values() for each in named if "Protocol" in each.bases)
    return "Protocol" not in one.bases and any(
        name in each.methods and each.methods[name].has_docstring and has_all(one, each) for each in protocols
    )


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions and classes within it."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        if not isinstance(node, (Function, ast.ClassDef, ast.Lambda)):
            yield node
            left.extend(ast.iter_child_nodes(node))


def raised(function: Function) -> set[str]:
    """The last names of the exceptions that a function raises itself. Names in small letters are variables."""
    names = {last_name(n.exc) for n in own_nodes(function) if isinstance(n, ast.Raise) and n.exc is not None}
    return {name for name in names if name.strip("_")[:1].isupper()}


def sections(docstring: str) -> dict[str, list[str]]:
    """Section → the names that it has a line for."""
    found: dict[str, list[str]] = {}
    entries: list[str] = []
    for line in docstring.splitlines():
        if heading := re.fullmatch(r"(Args|Returns|Yields|Raises):", line):
            entries = found.setdefault(heading[1], [])
        elif line[:1].strip():
            entries = []  # text again
        elif entry := re.match(r"    \*{0,2}([\w.]+):(?: |$)", line):
            entries.append(entry[1].rpartition(".")[2])
    return found


def is_plain(returns: ast.expr | None, docstring: str) -> bool:
    """Whether what a function returns needs no section."""
    kind = ast.unparse(returns).strip("'\"") if returns is not None else "None"
    if kind in ("None", "bool", "NoReturn", "Never") or kind.startswith("TypeGuard"):
        return True
    plain = kind.removesuffix(" | None")
    return (
        plain in ("int", "float", "str", "bytes")
        and NOUN.match(docstring) is not None
        and (plain == kind or "None" in docstring)
    )


def mistakes(
    function: Function, common: Mapping[str, Sequence[str]], docstring: str | None = None
) -> Iterator[str]:
    """What a docstring lacks, and what it should not have.

    Args:
        function: What is documented.
        common: Sections of its module's docstring.
        docstring: In place of the function's own; None for that.

    Yields:
        A few words for each mistake.
    """
    docstring = docstring or ast.get_docstring(function)
    if docstring is None:
        yield "no docstring"
        return
    has, names = sections(docstring), parameters(function)
    if missing := [name for name in names if name not in (*has.get("Args", ()), *common.get("Args", ()))]:
        yield f"no Args: {', '.join(missing)}"
    if odd := [name for name in has.get("Args", ()) if name not in names]:
        yield f"Args of no parameter: {', '.join(odd)}"
    if not is_plain(function.returns, docstring) and not {*has, *common} & {"Returns", "Yields"}:
        yield "no Returns"
    if unnamed := raised(function) - set(has.get("Raises", ())):
        yield f"no Raises: {', '.join(sorted(unnamed))}"


def constructor(node: ast.ClassDef) -> tuple[Function, str] | None:
    """A class's ``__init__`` if it takes or raises something, and the docstrings of both as one."""
    for method in node.body:
        if (
            isinstance(method, Function)
            and method.name == "__init__"
            and (parameters(method) or raised(method))
        ):
            return method, "\n\n".join(filter(None, (ast.get_docstring(node), ast.get_docstring(method))))
    return None


def public_functions(tree: ast.Module, known: Classes) -> Iterator[tuple[str, Function, str | None]]:
    """What the rule is for.

    Args:
        tree: A module.
        known: All classes.

    Yields:
        Name, function, and its docstring where that is not the function's own.
    """

    def within(
        body: list[ast.stmt], prefix: str, one: Class | None
    ) -> Iterator[tuple[str, Function, str | None]]:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if made := constructor(node):
                    yield prefix + node.name, *made
                inner = Class(tuple(map(last_name, node.bases)), methods(node))
                yield from within(node.body, f"{prefix}{node.name}.", inner)
            elif isinstance(node, Function) and not node.name.startswith("_"):
                decorators = [ast.unparse(d) for d in node.decorator_list]
                is_exempt = any(EXEMPT.match(decorator) for decorator in decorators)
                if not is_exempt and not (one and is_documented_elsewhere(node.name, one, known)):
                    yield prefix + node.name, node, None

    yield from within(tree.body, "", None)


def package_of(path: str) -> str:
    """The package of a file in one of the trees, such as ``infercanary.judge``."""
    parts = Path(path).parts[1:]
    return ".".join(parts[:2] if len(parts) > 2 else parts[:1])


def all_mistakes(sources: dict[str, str]) -> list[str]:
    """One line for each function that breaks the rule, in the packages that are done."""
    trees = {path: ast.parse(text) for path, text in sources.items()}
    known = classes(trees)
    return [
        f"{path}:{function.lineno} {name}: {'; '.join(found)}"
        for path, tree in trees.items()
        if package_of(path) not in NOT_YET
        for name, function, docstring in public_functions(tree, known)
        if (found := [*mistakes(function, sections(ast.get_docstring(tree) or ""), docstring)])
    ]


def test_every_public_function_documents_what_goes_in_and_out() -> None:
    paths = [path for tree in TREES for path in sorted((ROOT / tree).rglob("*.py"))]
    found = all_mistakes({str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in paths})
    assert not found, "\n".join([f"{len(found)} docstrings:", *found])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('def f(a: int) -> None:\n    """Do."""', "no Args: a"),
        ('def f(a: int) -> None:\n    """Do.\n\n    Args:\n        a: It.\n    """', None),
        ('def f() -> None:\n    """Do.\n\n    Args:\n        a: It.\n    """', "Args of no parameter: a"),
        (
            'def f(*a: int, **b: int) -> None:\n    """Do.\n\n    Args:\n        *a: It.\n    """',
            "no Args: b",
        ),
        ('def f() -> str:\n    """The name."""', None),
        ('def f() -> str:\n    """Read the name."""', "no Returns"),
        ('def f() -> str | None:\n    """The name."""', "no Returns"),
        ('def f() -> str | None:\n    """The name; None without one."""', None),
        ('def f() -> None:\n    """Do."""\n    raise a.B("x")', "no Raises: B"),
        ('def f() -> None:\n    """Do.\n\n    Raises:\n        a.B: x.\n    """\n    raise a.B("x")', None),
        ('def f() -> None:\n    """Do."""\n    raise', None),
        ('"""M.\n\nArgs:\n    a: It.\n"""\n\ndef f(a: int) -> None:\n    """Do."""', None),
        ("def f() -> None: ...", "no docstring"),
        ("def _f(a: int) -> int: ...", None),
        ('class C:\n    """It."""\n\n    def __init__(self, a: int) -> None: ...', "no Args: a"),
        (
            'class C:\n    """It.\n\n    Args:\n        a: It.\n    """\n\n    def __init__(self, a: int) -> None: ...',
            None,
        ),
        ('@click.command()\ndef f(a: int) -> None:\n    """Help."""', None),
        ('class P(Protocol):\n    def f(self, a: int) -> None:\n        """Do."""', "no Args: a"),
        (
            'class P(Protocol):\n    def f(self, a: int) -> None:\n        """Do.\n\n'
            '        Args:\n            a: It.\n        """\n\n'
            "class C:\n    def f(self, a: int) -> None: ...",
            None,
        ),
    ],
)
def test_what_a_mistake_is(source: str, found: str | None) -> None:
    lines = [line.partition(": ")[2] for line in all_mistakes({"probe/infercanary/x/y.py": source})]
    assert lines == ([] if found is None else [found])
