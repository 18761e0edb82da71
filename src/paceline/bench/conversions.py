"""Convert rows of public evaluation sets to prompt records.

A function takes a row as its source has it and returns any number of records: `task`, `turns`, and
`id`, `reference_documents` and `reference` if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

Record = dict[str, Any]
Convert = Callable[[Any], list[Record]]

# MBPP's own split: few-shot prompts before, validation and training after.
_MBPP_TEST = range(11, 511)


def _spec_bench(row: Any) -> list[Record]:
    """A question; its article or passages are reference documents as well."""
    record = {"id": row["question_id"], "task": row["category"], "turns": row["turns"]}
    (first, *_) = row["turns"]
    if row["category"] == "summarization":
        record["reference_documents"] = [first.removeprefix("Summarize: ")]
    if row["category"] == "rag":
        passages, _, _ = first.rpartition("\n")  # the question comes last
        record["reference_documents"] = [passages]
    if "reference" in row:
        record["reference"] = row["reference"]
    return [record]


def _humaneval(row: Any) -> list[Record]:
    """A function to complete; `prompt` is the original."""
    ask = f"Complete this Python function. Return the whole function.\n\n{_fenced(row['prompt'])}"
    told = {"id": _last(row["task_id"]), "prompt": row["prompt"]}
    return _question("code", ask, row["canonical_solution"], **told)


def _humanevalfix(row: Any) -> list[Record]:
    """A function with a bug to fix."""
    broken, mended = (row["prompt"] + row[key] for key in ("buggy_solution", "canonical_solution"))
    ask = f"Fix the bug in `{row['entry_point']}`. Return the whole corrected function."
    return _edit(broken, ask, mended, id=_last(row["task_id"]))


def _mbpp(row: Any) -> list[Record]:
    """A function to write, from the test split."""
    if row["task_id"] not in _MBPP_TEST:
        return []
    tests = "\n".join(row["test_list"])
    ask = f"{row['text']} Write it in Python. It has to pass these tests:\n\n{_fenced(tests)}"
    return _question("code", ask, row["code"].replace("\r\n", "\n"), id=row["task_id"])


def _llma_cnndm(row: Any) -> list[Record]:
    """The prompt from the LLMA paper's files, article included."""
    # Answers there begin with their number: "1####The ...".
    answer = row["result"]["text"].rpartition("####")[2].strip()
    documents = _texts(row["docs"])
    return _question("summarization", row["query"], answer, reference_documents=documents)


def _llma_rag(row: Any) -> list[Record]:
    """Passages and a question about them."""
    documents = _texts(row["docs"])
    ask = "\n".join(["docs:", *documents, f"query: {row['query']}", "answer:"])
    answer = row["result"]["text"].strip()
    return _question("rag", ask, answer, reference_documents=documents)


def _canitedit(row: Any) -> list[Record]:
    """A program to edit, once with a detailed and once with a lazy instruction."""
    return [
        record
        for kind in ("descriptive", "lazy")
        for record in _edit(
            row["before"],
            f"{row[f'instruction_{kind}'].strip()}\n\nReturn the whole edited program.",
            row["after"],
            id=f"{row['full_name']}/{kind}",
        )
    ]


def _editeval(row: Any) -> list[Record]:
    """A program to edit."""
    ask = f"{row['instruction'].strip()} Return the whole edited program."
    return _edit(row["input"], ask, row["output"], id=_last(row["task_id"]))


def _mteval_refine(row: Any) -> list[Record]:
    """A text, a task about it, and successive requests to refine the answer."""
    turns = [turn["user"] for turn in row]
    document = turns[0].removeprefix("Content: ").rpartition("\n\nInstruction:")[0].strip()
    answers = {"reference_documents": [document], "reference": [turn["sys"] for turn in row]}
    return [{"id": row[0]["id"], "task": "multi_turn_refine", "turns": turns, **answers}]


def _mtbench101(row: Any) -> list[Record]:
    """The user's side of a conversation."""
    turns, answers = ([turn[who] for turn in row["history"]] for who in ("user", "bot"))
    return [{"id": row["id"], "task": "multi_turn", "turns": turns, "reference": answers}]


def _asked(task: str, row: Any) -> list[Record]:
    """A question from FastChat's files, with its category."""
    told = {name: row[name] for name in ("category", "turns")}
    return [{"id": row["question_id"], "task": task, **told}]


def _question(task: str, ask: str, answer: Any, **more: Any) -> list[Record]:
    return [{"task": task, "turns": [ask], "reference": answer, **more}]


def _about(ask: str, document: str, summary: str, row: Any) -> list[Record]:
    """A summary to write; some articles in public sets are empty."""
    if not document.strip():
        return []
    told = {"reference_documents": [document], "id": row["id"]}
    return _question("summarization", ask + document, summary, **told)


def _edit(before: str, ask: str, after: str, **more: Any) -> list[Record]:
    before = before.strip("\n")
    turn = f"{ask}\n\n{_fenced(before)}"
    return _question("code_edit", turn, after, reference_documents=[before], **more)


def _rewrite(ask: str, row: Sequence[str]) -> list[Record]:
    """A row holds the same line of several files: the text, then versions of it."""
    text, *versions = row
    if not text.strip():
        return []
    return _question("text_edit", f"{ask}\n\n{text}", versions, reference_documents=[text])


def _fenced(code: str) -> str:
    return f"```python\n{code.strip(chr(10))}\n```"


def _last(path: str) -> str:
    """The number in "HumanEval/7"."""
    return path.rpartition("/")[2]


def _texts(documents: Sequence[str]) -> list[str]:
    return [document.strip() for document in documents]


CONVERSIONS: dict[str, Convert] = {
    "spec_bench": _spec_bench,
    "mt_bench": lambda row: _asked("multi_turn", row),
    "vicuna_bench": lambda row: _asked("chat", row),
    "humaneval": _humaneval,
    "humanevalfix": _humanevalfix,
    "mbpp": _mbpp,
    "gsm8k": lambda row: _question("math_reasoning", row["question"], row["answer"]),
    "math500": lambda row: _question(
        "math_reasoning", row["problem"], row["solution"], id=row["unique_id"]
    ),
    "cnndm": lambda row: _about("Summarize: ", row["article"], row["highlights"], row),
    "xsum": lambda row: _about("Summarize in one sentence: ", row["document"], row["summary"], row),
    "llma_cnndm": _llma_cnndm,
    "llma_rag": _llma_rag,
    "wmt16_deen": lambda row: _question(
        "translation",
        f"Translate German to English: {row['translation']['de']}",
        row["translation"]["en"],
    ),
    "canitedit": _canitedit,
    "editeval": _editeval,
    "jfleg": partial(
        _rewrite, "Correct the grammar and spelling of this text. Return only the result."
    ),
    "asset": partial(_rewrite, "Make this sentence easier to read. Return only the result."),
    "mteval_refine": _mteval_refine,
    "mtbench101": _mtbench101,
}
"""By name of the set's file."""
