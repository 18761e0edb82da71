"""The Ray Data actor of `paceline batch --ray`, which holds one model. Imports nothing of Ray."""

from __future__ import annotations

import asyncio
import json

from paceline.errors import PacelineError
from paceline.serve.batch_lines import AnswersOf, Batch, BatchLine, Outcome


class Answering:
    """Answers the requests of a batch file. Every answer reports errors in the arguments: raised
    here, they would come with the tracebacks of two processes, and after three retries."""

    def __init__(self, given: AnswersOf) -> None:
        # Imported here because the process that sends the rows does not need these.
        import torch

        from paceline.api import load
        from paceline.serve.app import create_app
        from paceline.serve.batch_run import batch_server

        # Older versions of Ray use the thread's event loop, which uvloop does not create.
        asyncio.set_event_loop(asyncio.new_event_loop())
        self._refusal = ""
        if given.threads is not None:
            torch.set_num_threads(given.threads)
        try:
            session = load(given.model, given.method, **given.placement)
        except PacelineError as error:
            self._refusal = str(error)
            return
        except Exception as error:  # Ray would restart the actor for ever
            self._refusal = f"an actor cannot start: {type(error).__name__}: {error}"
            return
        session.budget = given.budget
        server = batch_server(session, given.names, given.max_batch)
        self._app = create_app(server)
        server.engine.start()

    async def __call__(self, batch: Batch) -> dict[str, list[str]]:
        """Answer rows made by `row`; `outcomes` reads the rows returned."""
        from paceline.serve.batch_run import outcome_of

        lines = [
            BatchLine(int(number), "", None, *json.loads(request))
            for number, request in zip(batch["number"], batch["request"], strict=True)
        ]
        found = [Outcome(line) for line in lines]
        if not self._refusal:
            found = await asyncio.gather(*(outcome_of(self._app, line) for line in lines))
        said = [[each.status, each.request_id, each.body, self._refusal] for each in found]
        return {
            "number": [str(each.line.number) for each in found],
            "answer": [json.dumps(answer) for answer in said],
        }
