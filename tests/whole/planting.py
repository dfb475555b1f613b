"""Bugs to plant in the program, one at a time: what the simulation is worth.

A bug is an operator on the syntax tree of a named function, so that it survives a change of what is around it and says
when there is nothing left for it to break.
"""

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Operator = Callable[[ast.AST], int]
"""Changes a function's tree; returns in how many places."""


@dataclass(frozen=True)
class Plant:
    """`where` is `module:function` or `module:Class.method`."""

    name: str
    where: str
    operator: Operator

    @contextmanager
    def planted(self) -> Iterator[None]:
        module_name, _, path = self.where.partition(":")
        owner: Any = importlib.import_module(module_name)
        *outer, name = path.split(".")
        for each in outer:
            owner = getattr(owner, each)
        original = inspect.getattr_static(owner, name)
        function = original.fget if isinstance(original, property) else inspect.unwrap(original)
        changed = _changed(self, function)
        for wrapper in _wrappers(function):
            changed = wrapper(changed)
        put = property(changed) if isinstance(original, property) else changed
        places = [(owner, name)] if outer else _importers(name, original)
        for place, attribute in places:
            setattr(place, attribute, put)
        try:
            yield
        finally:
            for place, attribute in places:
                setattr(place, attribute, original)


def _importers(name: str, function: Any) -> list[tuple[Any, str]]:
    """Where a module's function is known by its name."""
    modules = [module for path, module in sorted(sys.modules.items()) if path.startswith(("gateway", "engine"))]
    return [(module, name) for module in modules if vars(module).get(name) is function]


def _changed(plant: Plant, function: Any) -> Any:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    definition.decorator_list = []
    places = plant.operator(definition)
    assert places, f"there is nothing left to break: {plant.name} in {plant.where}"
    ast.fix_missing_locations(tree)
    scope: dict[str, Any] = {}
    exec(compile(tree, f"<planted: {plant.name}>", "exec"), function.__globals__, scope)
    made = scope[definition.name]
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def _wrappers(function: Any) -> list[Callable[[Any], Any]]:
    """What its decorators were, from the inside out, where they are known."""
    import contextlib

    known = {
        "asynccontextmanager": contextlib.asynccontextmanager,
        "contextmanager": contextlib.contextmanager,
        "staticmethod": staticmethod,
        "classmethod": classmethod,
    }
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    names = [each.id for each in reversed(definition.decorator_list) if isinstance(each, ast.Name)]
    return [known[name] for name in names if name in known]


def _called(node: ast.AST, name: str) -> bool:
    """Whether a call of this name is somewhere in the node."""
    return any(isinstance(each, ast.Call) and _name(each.func) == name for each in ast.walk(node))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for part in ("body", "orelse", "finalbody"):
            body = getattr(node, part, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body


def _rewrite(tree: ast.AST, change: Callable[[ast.stmt], list[ast.stmt] | None], most: int = 1) -> int:
    """Replace innermost statements by what `change` makes of them; None leaves one as it is."""
    places = 0
    for body in list(_bodies(tree)):
        index = 0
        while index < len(body) and places < most:
            made = change(body[index])
            if made is not None:
                body[index : index + 1] = made or [ast.Pass()]
                places += 1
                index += len(made or [0])
            else:
                index += 1
    return places


def _simple(statement: ast.stmt) -> bool:
    return isinstance(
        statement, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Raise | ast.Delete
    )


def drop(call: str, most: int = 1) -> Operator:
    """The statement that calls it is not there."""
    return lambda tree: _rewrite(tree, lambda each: [] if _simple(each) and _called(each, call) else None, most)


def drop_assignment(target: str, most: int = 1) -> Operator:
    """What is assigned to an attribute, a name or a member of it is not."""

    def mine(statement: ast.stmt) -> bool:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
            targets = [statement.target]
        else:
            return False
        return any(_target(each) == target for each in targets)

    return lambda tree: _rewrite(tree, lambda each: [] if mine(each) else None, most)


def drop_deletion(target: str) -> Operator:
    """A member is not deleted."""
    return lambda tree: _rewrite(
        tree, lambda each: [] if isinstance(each, ast.Delete) and _target(each.targets[0]) == target else None
    )


def _target(node: ast.expr) -> str:
    if isinstance(node, ast.Tuple):
        return ",".join(map(_target, node.elts))
    return _target(node.value) if isinstance(node, ast.Subscript) else _name(node)


def return_before(call: str, value: str = "None") -> Operator:
    """It returns instead of calling it."""
    return lambda tree: _rewrite(
        tree, lambda each: ast.parse(f"return {value}").body if _simple(each) and _called(each, call) else None
    )


def without_if(index: int = 0, *, taken: bool) -> Operator:
    """A condition that always, or never, holds."""

    def operate(tree: ast.AST) -> int:
        conditions = [each for each in ast.walk(tree) if isinstance(each, ast.If | ast.IfExp | ast.While)]
        if len(conditions) <= index:
            return 0
        conditions[index].test = ast.Constant(taken)
        return 1

    return operate


def without_finally(index: int = 0) -> Operator:
    """What is to happen in any case does where all goes well."""

    def operate(tree: ast.AST) -> int:
        tries = [each for each in ast.walk(tree) if isinstance(each, ast.Try) and each.finalbody]
        if len(tries) <= index:
            return 0
        found = tries[index]
        found.orelse = [*found.orelse, *found.finalbody]
        found.finalbody = []
        if not found.handlers:
            found.handlers = [ast.ExceptHandler(ast.Name("BaseException", ast.Load()), None, [ast.Raise()])]
        return 1

    return operate


def without_except(index: int = 0) -> Operator:
    """An error is not seen to."""

    def operate(tree: ast.AST) -> int:
        handlers = [(each, one) for each in ast.walk(tree) if isinstance(each, ast.Try) for one in each.handlers]
        if len(handlers) <= index:
            return 0
        handlers[index][1].body = [ast.Raise()]
        return 1

    return operate


def replace(old: str, new: str, most: int = 1) -> Operator:
    """One expression in place of another, both in Python's words."""
    wanted, put = ast.dump(ast.parse(old, mode="eval").body), new

    def operate(tree: ast.AST) -> int:
        places = 0

        class Replacing(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> ast.AST:
                nonlocal places
                if places < most and isinstance(node, ast.expr) and ast.dump(node) == wanted:
                    places += 1
                    return ast.parse(put, mode="eval").body
                return self.generic_visit(node)

        Replacing().visit(tree)
        return places

    return operate


def unshielded() -> Operator:
    """A caller that is cancelled takes it along."""

    def operate(tree: ast.AST) -> int:
        places = 0

        class Unshielding(ast.NodeTransformer):
            def visit_Call(self, node: ast.Call) -> ast.AST:
                nonlocal places
                self.generic_visit(node)
                if _name(node.func) == "shield":
                    places += 1
                    return node.args[0]
                return node

        Unshielding().visit(tree)
        return places

    return operate


def swapped(first: str, second: str) -> Operator:
    """Two statements of one body, each known by what it calls, in the other order."""

    def operate(tree: ast.AST) -> int:
        for body in _bodies(tree):
            places = [
                next((index for index, each in enumerate(body) if _called(each, name)), None)
                for name in (first, second)
            ]
            if places[0] is not None and places[1] is not None and places[0] != places[1]:
                one, other = places[0], places[1]
                body[one], body[other] = body[other], body[one]
                return 1
        return 0

    return operate
