"""`paceline serve`: an HTTP server with OpenAI's protocol."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.cli import common
from paceline.cli.flags import option
from paceline.cli.groups import AliasOption, BudgetOption, Choice, DatastoreOption, Machine
from paceline.errors import UsageError
from paceline.serve.logs import log_to_stderr
from paceline.serve.settings import (
    KEY_VARIABLE,
    ServeSettings,
    checked_keys,
    keys_of_environment,
    public_name,
)


@dataclass(frozen=True)
class Listening:
    """Where the server listens, and to whom."""

    host: str = option("127.0.0.1", "Address to listen on; default: this machine only.")
    port: int = option(8000, "Port to listen on; 0: any free one.", min=0, max=65535)
    api_key: Path | None = option(
        None, f"File of keys, one per line; default: the variable {KEY_VARIABLE}."
    )
    allowed_host: list[str] | None = option(
        None,
        "Host name that requests may use, in addition to loopback names and --host; may be "
        "repeated. Default: none if the server listens on loopback, else any ('*').",
    )


def serve(
    *,
    choice: Choice,
    listening: Listening,
    alias: AliasOption = None,
    budget: BudgetOption = None,
    machine: Machine,
    datastore: DatastoreOption = None,
    settings: ServeSettings,
) -> None:
    """Serve a model to OpenAI's clients; see docs/serve.md."""
    keys = _keys(listening.api_key)
    common.request_options(budget=budget)
    chosen = choice.chosen
    common.check_installed()
    from paceline.serve.access import known_hosts
    from paceline.serve.app import Server
    from paceline.serve.heap import share_one_heap
    from paceline.serve.running_server import bound_socket, run

    share_one_heap()
    bound = bound_socket(listening.host, listening.port)  # before a model is loaded in vain
    here, others = bound.getsockname()[0], listening.allowed_host or ()
    hosts = known_hosts(here, listening.host, others)
    # What its operator has kept for other uses is nothing for those who may ask it.
    texts = False if datastore is None else datastore
    session = common.open_session(choice.model, chosen, datastore=texts, **vars(machine))
    session.budget = budget
    log_to_stderr()
    names = [public_name(choice.model), *(alias or ())]
    run(Server(session, names, settings, keys, hosts), bound)


def _keys(file: Path | None) -> list[str]:
    """The keys of a file, or of the environment; none if there are none in either."""
    if file is None:
        return keys_of_environment()
    lines = common.read_text(file, "file of keys").split("\n")
    found = [key for line in lines if (key := line.strip())]
    if not found:
        raise UsageError(f"the file of keys {file} is empty: write one key per line")
    if any(len(key.split()) > 1 for key in found):
        raise UsageError(f"a key in {file} has blanks inside: write one key per line, without them")
    return checked_keys(found)
