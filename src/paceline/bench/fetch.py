"""Download public evaluation sets as prompt files."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from time import sleep
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from paceline.bench.conversions import Record
from paceline.bench.sources import HubTable, RepositoryFiles, Source
from paceline.errors import UsageError, writable
from paceline.json_files import replace_file

OnRecords = Callable[[int, int | None], None]
"""Called with the number of records so far, and of all rows (None if unknown)."""

_PAGE_ROWS = 100  # the hub's limit per request
_TIMEOUT_SECONDS = 60
_CLOSED = "it has moved or is closed, so leave this set out"
_TRY_AGAIN = (429, 500, 502, 503, 504)  # the server is busy


@dataclass(frozen=True)
class Fetcher:
    """Fills a folder.

    github, hub: base URLs for files of repositories and rows of tables.
    waits: seconds to wait before each retry when a server is busy.
    """

    folder: Path
    github: str = "https://raw.githubusercontent.com"
    hub: str = "https://datasets-server.huggingface.co"
    waits: tuple[float, ...] = (2.0, 8.0, 30.0)

    def path(self, stem: str) -> Path:
        """The file of a set."""
        return self.folder / f"{stem}.jsonl"

    def fetch(
        self,
        stem: str,
        source: Source,
        limit: int | None = None,
        on_records: OnRecords = lambda done, total: None,
    ) -> int:
        """Write the file of a set, replacing an existing one; return the number of records.

        limit: most records per task; the first ones are taken.

        Raises UsageError, naming the URL, if the source cannot be reached or is not what was
        expected, and if the file cannot be written.
        """
        records = self._records(source, limit, on_records)
        lines = [
            json.dumps(
                {
                    **record,
                    "id": f"{stem}/{record.get('id', number)}",
                    "source": source.place.page,
                    "licence": source.licence,
                },
                ensure_ascii=False,
            )
            for number, record in enumerate(records)
        ]
        path = self.path(stem)
        with writable(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, "".join(f"{line}\n" for line in lines).encode())
        return len(records)

    def _records(self, source: Source, limit: int | None, on_records: OnRecords) -> list[Record]:
        records: list[Record] = []
        taken: Counter[str] = Counter()
        for url, rows, total in self._pages(source.place):
            with _expected(url):
                for record in (record for row in rows for record in source.convert(row)):
                    taken[record["task"]] += 1
                    if limit is None or taken[record["task"]] <= limit:
                        records.append(record)
            on_records(len(records), total)
            # No table has several tasks; a file with several is one page.
            if limit is not None and len(records) >= limit:
                break
        return records

    def _pages(
        self, place: RepositoryFiles | HubTable
    ) -> Iterator[tuple[str, list[Any], int | None]]:
        """Yield rows page by page, each page with its URL and the total number of rows."""
        if isinstance(place, HubTable):
            yield from self._table(place)
            return
        base = f"{self.github}/{place.repository}/{place.commit}"
        urls = [f"{base}/{path}" for path in place.paths]
        texts = [self._text(url) for url in urls]
        with _expected(urls[0]):
            if len(texts) == 1:
                rows: list[Any] = [json.loads(line) for line in texts[0] if line.strip()]
            else:
                rows = list(zip(*texts, strict=True))
            if not rows:
                raise ValueError("it is empty")
        yield urls[0], rows, len(rows)

    def _table(self, place: HubTable) -> Iterator[tuple[str, list[Any], int]]:
        names = {"dataset": place.dataset, "config": place.config, "split": place.split}
        offset, total = 0, 1
        while offset < total:
            query = urlencode({**names, "offset": offset, "length": _PAGE_ROWS})
            url = f"{self.hub}/rows?{query}"
            content = _get(url, self.waits)
            with _expected(url):
                page = json.loads(content)
                total, entries = int(page["num_rows_total"]), page["rows"]
                if not entries:
                    raise ValueError("it has no rows")
                if any(entry.get("truncated_cells") for entry in entries):
                    raise ValueError("its texts are cut short")
                rows = [entry["row"] for entry in entries]
            yield url, rows, total
            offset += len(rows)

    def _text(self, url: str) -> list[str]:
        content = _get(url, self.waits)
        with _expected(url):
            if url.endswith(".gz"):
                content = gzip.decompress(content)
            # Not `splitlines`, which also splits at characters that occur in texts.
            return content.decode().removesuffix("\n").split("\n")


def _get(url: str, waits: Sequence[float]) -> bytes:
    """Read a URL; while the server is busy, wait for the next of `waits` and try again."""
    request = Request(url, headers={"User-Agent": "paceline"})  # noqa: S310
    left = iter(waits)
    while True:
        try:
            with urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
                content: bytes = response.read()
                return content
        except HTTPError as error:
            error.close()
            busy = error.code in _TRY_AGAIN
            wait = next(left, None) if busy else None
            if wait is None:
                hint = "try again later" if busy else _CLOSED
                raise UsageError(f"cannot fetch {url} (HTTP {error.code}): {hint}") from error
            sleep(wait)
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise UsageError(
                f"cannot reach {url} ({reason}): check the connection, or fetch on another machine "
                "and copy the file"
            ) from error


@contextmanager
def _expected(url: str) -> Iterator[None]:
    """Raise UsageError if the `with` block cannot parse the response."""
    try:
        yield
    except (
        *(ValueError, LookupError, TypeError, AttributeError, RecursionError),
        *(EOFError, gzip.BadGzipFile, zlib.error),
    ) as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ").replace("\n", " ")
        raise UsageError(
            f"unexpected response from {url} ({what}): try again, or leave this set out"
        ) from error
