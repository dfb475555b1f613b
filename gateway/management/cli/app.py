"""The command's root and groups, and one-line errors."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from gateway.errors import OperatorError

_FRAME: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


class OneLineErrors(TyperGroup):
    """Prints an error as one line, `turnpike: MESSAGE`, on standard error. Exit code 2: invalid command line; 1: an
    error that an operator can fix. Any other exception is a bug and shows its traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except TyperException as error:
            _fail(_usage_message(error), error.exit_code)
        except OperatorError as error:
            _fail(f"turnpike: {error}", 1)
        except typer.Abort:
            _fail("turnpike: aborted", 1)
        sys.exit(code if isinstance(code, int) else 0)


def root(purpose: str) -> typer.Typer:
    app = typer.Typer(
        name="turnpike",
        cls=OneLineErrors,
        context_settings={"help_option_names": ["-h", "--help"]},  # of all commands
        **_FRAME | {"add_completion": True},
    )
    app.callback(help=purpose)(_root_options)
    return app


def group(parent: typer.Typer, name: str, purpose: str, commands: Mapping[str, Callable[..., None]]) -> typer.Typer:
    """A group of subcommands, by name. One with a `context` alone gets all arguments there, for `run_nested`."""
    child = typer.Typer(help=purpose, **_FRAME)
    for each, command in commands.items():
        takes_all = [*inspect.signature(command).parameters] == ["context"]
        settings = {"ignore_unknown_options": takes_all, "allow_extra_args": takes_all}
        child.command(each, add_help_option=not takes_all, context_settings=settings)(command)
    parent.add_typer(child, name=name)
    return child


def run_nested(command: Callable[..., None], context: typer.Context) -> None:
    """Run `command` with the arguments of `context`, whose own command declares none and leaves them all."""
    nested = typer.Typer(**_FRAME)
    nested.command()(command)
    made = typer.main.get_command(nested)
    with made.make_context(context.info_name, context.args, parent=context.parent) as inner:
        made.invoke(inner)


def _print_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata  # slow, and needed here alone

        typer.echo(f"turnpike {importlib.metadata.version('turnpike')}")
        raise typer.Exit


def _root_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _usage_message(error: TyperException) -> str:
    message = error.format_message()
    if message.startswith("Usage:"):  # no command at all: the message is the help
        return message
    message = " ".join(message.replace("Value error, ", "").split()).rstrip(".")
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    return f"turnpike: {message}{hint}"


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    sys.exit(code)
