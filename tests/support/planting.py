"""Bugs for simulations to find, each an operator on the syntax tree of a named function (mutation testing).

A plant survives changes elsewhere in its function, and raises `NothingToBreak` when nothing is left for it to break.
"""

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import Any

Operator = Callable[[ast.AST], int]
"""Changes the tree of a function. Returns the number of changed places."""


class NothingToBreak(Exception):
    """The operator of a plant matches nothing in its function."""


@dataclass(frozen=True)
class Plant:
    """A bug in `function`, `Class.method` or a function of `module`.

    `seed`: the first seed to search for a failure; None where no seed is known to show the bug.
    """

    name: str
    function: str
    operator: Operator
    seed: int | None = 0
    module: str = ""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Replace the function by its mutant, in its class or in every module that imports it."""
        owner: Any = importlib.import_module(self.module)
        *classes, name = self.function.split(".")
        for class_name in classes:
            owner = getattr(owner, class_name)
        original = inspect.getattr_static(owner, name)
        owners = [owner] if classes else list(_importers(name, original))
        mutant = self._mutant(original)
        for each in owners:
            setattr(each, name, mutant)
        try:
            yield
        finally:
            for each in owners:
                setattr(each, name, original)

    def _mutant(self, original: Any) -> Any:
        function = inspect.unwrap(original.fget if isinstance(original, property) else original)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        if not self.operator(definition):
            raise NothingToBreak(f"{self.name!r} matches nothing in {self.module}:{self.function}")
        ast.fix_missing_locations(tree)
        scope: dict[str, Any] = {}
        exec(compile(tree, f"<planted: {self.name}>", "exec"), function.__globals__, scope)
        return scope[definition.name]


def plants_in(table: Mapping[str, Iterable[Plant]]) -> list[Plant]:
    """The plants of a table by `module`, or by `module:Class` for plants that name methods."""
    return [
        with_fields(plant, module=module, function=f"{cls}.{plant.function}" if cls else plant.function)
        for place, plants in table.items()
        for module, _, cls in [place.partition(":")]
        for plant in plants
    ]


def plant_named(name: str, plants: Iterable[Plant]) -> Plant:
    """The plant of this name. Raises `StopIteration` where there is none."""
    return next(plant for plant in plants if plant.name == name)


def drop(call: str, most: int = 1) -> Operator:
    """Remove the first `most` simple statements that call `call`."""
    return _rewrite(lambda statement: [] if _is_simple(statement) and _calls(statement, call) else None, most)


def drop_assignment(target: str) -> Operator:
    """Remove the first assignment to a name, an attribute or a member of it."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        match statement:
            case ast.Assign(targets=targets):
                return [] if any(_target(each) == target for each in targets) else None
            case ast.AugAssign(target=assigned) | ast.AnnAssign(target=assigned):
                return [] if _target(assigned) == target else None
        return None

    return _rewrite(change)


def drop_deletion(target: str) -> Operator:
    """Remove the first `del` of a member of `target`."""
    return _rewrite(
        lambda statement: [] if isinstance(statement, ast.Delete) and _target(statement.targets[0]) == target else None
    )


def insert_before(call: str, source: str) -> Operator:
    """Insert statements before the first simple statement that calls `call`."""
    return _rewrite(
        lambda statement: (
            [*ast.parse(source).body, statement] if _is_simple(statement) and _calls(statement, call) else None
        )
    )


def hoist(call: str, before: str) -> Operator:
    """Evaluate the first call of `call` before the first simple statement that calls `before`."""

    def operate(tree: ast.AST) -> int:
        hoisted: list[ast.expr] = []

        def name_result(node: ast.expr) -> ast.expr | None:
            if not isinstance(node, ast.Call) or _name(node.func) != call:
                return None
            hoisted.append(node)
            return _expression("hoisted")

        if not _substitute(name_result)(tree):
            return 0
        return insert_before(before, f"hoisted = {ast.unparse(hoisted[0])}")(tree)

    return operate


def return_before(call: str, value: str = "None") -> Operator:
    """Return `value` in place of the first simple statement that calls `call`."""
    return _rewrite(
        lambda statement: (
            ast.parse(f"return {value}").body if _is_simple(statement) and _calls(statement, call) else None
        )
    )


def replace(old: str, new: str, most: int = 1) -> Operator:
    """Replace the first `most` occurrences of an expression, or the first of a statement, by Python source."""
    wanted = ast.parse(old).body[0]
    if not isinstance(wanted, ast.Expr):
        return _rewrite(lambda each: ast.parse(new).body if ast.dump(each) == ast.dump(wanted) else None, most)
    dumped = ast.dump(wanted.value)
    return _substitute(lambda node: _expression(new) if ast.dump(node) == dumped else None, most)


def never(condition: str) -> Operator:
    """Replace the first occurrence of a condition by False."""
    return replace(condition, "False")


def always(condition: str) -> Operator:
    """Replace the first occurrence of a condition by True."""
    return replace(condition, "True")


def keep_operand(old: str, index: int) -> Operator:
    """Replace an operation, comparison, call or subscript by one of its operands, counted from 0."""
    return replace(old, ast.unparse(_operands(_expression(old))[index]))


def compare(old: str, comparison: str) -> Operator:
    """Use another comparison, such as `<=`, between the operands of the first occurrence of `old`."""
    left, right = map(ast.unparse, _operands(_expression(old)))
    return replace(old, f"{left} {comparison} {right}")


def replace_argument(call: str, argument: int | str, new: str) -> Operator:
    """Replace an argument, by position or keyword, in the first call of `call`."""

    def change(node: ast.expr) -> ast.expr | None:
        if not isinstance(node, ast.Call) or _name(node.func) != call:
            return None
        if isinstance(argument, int):
            node.args[argument] = _expression(new)
        else:
            next(keyword for keyword in node.keywords if keyword.arg == argument).value = _expression(new)
        return node

    return _substitute(change)


def replace_callee(call: str, new: str) -> Operator:
    """Call another function or method in the first call of `call`."""

    def change(node: ast.expr) -> ast.expr | None:
        match node:
            case ast.Call(func=ast.Name(id=name) as function) if name == call:
                function.id = new
            case ast.Call(func=ast.Attribute(attr=name) as method) if name == call:
                method.attr = new
            case _:
                return None
        return node

    return _substitute(change)


def unshield() -> Operator:
    """Await without `asyncio.shield`, so that the cancellation of the caller cancels the awaited call, too."""
    return _substitute(
        lambda node: node.args[0] if isinstance(node, ast.Call) and _name(node.func) == "shield" else None
    )


def force_condition(index: int, value: bool) -> Operator:
    """Replace the condition of the `index`-th `if`, conditional expression or `while` by a constant."""

    def operate(tree: ast.AST) -> int:
        conditions = [node for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp | ast.While)]
        for node in conditions[index : index + 1]:
            node.test = ast.Constant(value)
        return len(conditions) > index

    return operate


def drop_finally() -> Operator:
    """Run the first `finally` block only where no exception was raised."""

    def operate(tree: ast.AST) -> int:
        for node in ast.walk(tree):
            if isinstance(node, ast.Try) and node.finalbody:
                node.orelse, node.finalbody = [*node.orelse, *node.finalbody], []
                if not node.handlers:
                    node.handlers = [ast.ExceptHandler(_expression("BaseException"), None, [ast.Raise()])]
                return 1
        return 0

    return operate


def drop_except(index: int = 0) -> Operator:
    """Re-raise in the `index`-th `except` block."""

    def operate(tree: ast.AST) -> int:
        handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
        for handler in handlers[index : index + 1]:
            handler.body = [ast.Raise()]
        return len(handlers) > index

    return operate


def swap(first: str, second: str) -> Operator:
    """Swap two statements of one block, each the first there that contains a call of the name."""

    def operate(tree: ast.AST) -> int:
        for body in _blocks(tree):
            one, other = (
                next((index for index, statement in enumerate(body) if _calls(statement, name)), None)
                for name in (first, second)
            )
            if one is not None and other is not None and one != other:
                body[one], body[other] = body[other], body[one]
                return 1
        return 0

    return operate


def _importers(name: str, function: Any) -> Iterator[Any]:
    """The modules in which `name` is this function."""
    for path, module in sorted(sys.modules.items()):
        if path.startswith(("gateway", "engine")) and vars(module).get(name) is function:
            yield module


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements in the tree, outermost first."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _rewrite(change: Callable[[ast.stmt], list[ast.stmt] | None], most: int = 1) -> Operator:
    """Replace the first `most` statements for which `change` returns others. None keeps a statement."""

    def operate(tree: ast.AST) -> int:
        places = 0
        for block in list(_blocks(tree)):
            for statement in list(block):
                made = change(statement) if places < most else None
                if made is not None:
                    index = block.index(statement)
                    block[index : index + 1] = made or [ast.Pass()]
                    places += 1
        return places

    return operate


def _substitute(change: Callable[[ast.expr], ast.expr | None], most: int = 1) -> Operator:
    """Replace the first `most` expressions for which `change` returns another. None keeps an expression."""

    class Substitution(ast.NodeTransformer):
        def __init__(self) -> None:
            self.places = 0

        def visit(self, node: ast.AST) -> ast.AST:
            made = change(node) if self.places < most and isinstance(node, ast.expr) else None
            if made is None:
                return self.generic_visit(node)
            self.places += 1
            return made

    def operate(tree: ast.AST) -> int:
        substitution = Substitution()
        substitution.visit(tree)
        return substitution.places

    return operate


def _operands(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BoolOp(values=operands) | ast.Call(args=operands):
            return operands
        case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right]):
            return [left, right]
        case ast.UnaryOp(operand=operand) | ast.Subscript(value=operand):
            return [operand]
    raise ValueError(f"{ast.unparse(node)!r} is no operation on operands")


def _expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def _is_simple(statement: ast.stmt) -> bool:
    return not any(True for _ in _blocks(statement)) and not isinstance(statement, ast.Match)


def _calls(node: ast.AST, name: str) -> bool:
    """Whether the node contains a call of a function or method of this name."""
    return any(isinstance(each, ast.Call) and _name(each.func) == name for each in ast.walk(node))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _target(node: ast.expr) -> str:
    """The name of an assignment's target, without subscripts; those of a tuple joined by commas."""
    if isinstance(node, ast.Tuple):
        return ",".join(map(_target, node.elts))
    return _target(node.value) if isinstance(node, ast.Subscript) else _name(node)
