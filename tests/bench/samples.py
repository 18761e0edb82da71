"""A row of every public set as its source has it, and the prompt that it has to become."""

from __future__ import annotations

from typing import Any

_MT = {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]}
_ARTICLE = "(CNN)It rained.\n\nAll day."
_LLMA = "Below is an instruction.\n\n### Input:\n(CNN)It rained.\n\n### Response:\n"
_CODE = "def one():\n    return 2"
_PACK = {
    "task_id": "Python/3",
    "prompt": 'def one():\n    """One."""\n',
    "canonical_solution": "    return 1\n",
    "buggy_solution": "    return 2\n",
    "bug_type": "value misuse",
    "entry_point": "one",
}

SAMPLES: dict[str, list[Any]] = {
    "spec_bench": [
        {
            "question_id": 481,
            "category": "rag",
            "turns": ["Rain falls.\nSnow as well.\nwhat falls"],
            "reference": ["rain"],
        },
        {"question_id": 241, "category": "summarization", "turns": ["Summarize: It rained."]},
        _MT,
    ],
    "mt_bench": [_MT],
    "vicuna_bench": [{"question_id": 1, "category": "generic", "turns": ["How do I sleep?"]}],
    "humaneval": [
        {
            "task_id": "HumanEval/0",
            "prompt": '\ndef one():\n    """One."""\n',
            "entry_point": "one",
            "canonical_solution": "    return 1\n",
            "test": "def check(candidate): ...",
        }
    ],
    "humanevalfix": [_PACK],
    "mbpp": [
        {
            "text": "Write a function to find one.",
            "code": "def one():\r\n  return 1",
            "task_id": 11,
            "test_setup_code": "",
            "test_list": ["assert one() == 1", "assert one() < 2"],
            "challenge_test_list": [],
        }
    ],
    "gsm8k": [{"question": "What is 2\u20281?", "answer": "2-1 = <<2-1=1>>1\n#### 1"}],
    "math500": [
        {
            "problem": "What is $1$?",
            "solution": "It is $1$.",
            "answer": "1",
            "type": "Algebra",
            "level": 1,
            "unique_id": "test/algebra/1.json",
        }
    ],
    "llma_rag": [
        {
            "query": "what falls",
            "docs": [" Rain falls.", "Snow falls. "],
            "result": {"text": " Rain.", "index": 0, "logprobs": None, "finish_reason": "stop"},
        }
    ],
    "llma_cnndm": [{"query": _LLMA, "docs": ["(CNN)It rained."], "result": {"text": "1####Rain."}}],
    "editeval": [
        {
            "task_id": "EditEval/0",
            "instruction": "Make it one. ",
            "context": "",
            "input": _CODE,
            "output": "def one():\n    return 1",
            "test": "def check(): ...",
            "META": {"author": "x"},
        }
    ],
    "jfleg": [("He go .", "He goes .", "He went .", "He goes .", "He is going .")],
    "asset": [("It was raining.", *(f"Rain {number}." for number in range(10)))],
    "mteval_refine": [
        [
            {
                "user": "Content: It rained. \n\nInstruction: Sum it up.",
                "sys": "Rain.",
                "id": "1_sum_1",
            },
            {"user": "Shorter.", "sys": "R.", "id": "1_sum_2"},
        ]
    ],
    "mtbench101": [
        {
            "task": "GR",
            "id": 1,
            "history": [{"user": "One?", "bot": "1"}, {"user": "And two?", "bot": "2"}],
        }
    ],
    "cnndm": [{"article": _ARTICLE, "highlights": "It rained .\nAll day .", "id": "92c5"}],
    "xsum": [{"document": _ARTICLE, "summary": "It rained.", "id": "2918"}],
    "wmt16_deen": [{"translation": {"de": "Es regnet.", "en": "It rains."}}],
    "canitedit": [
        {
            "id": 10,
            "name": "one",
            "full_name": "10_one",
            "before": _CODE,
            "after": "def one():\n    return 1",
            "tests": "assert one() == 1",
            "instruction_descriptive": "Make the function return one.\n",
            "instruction_lazy": "make it one",
            "taxonomy": {"change_kind": "corrective", "libraries": [], "topic": "Math"},
        }
    ],
}

TURNS: dict[str, list[str]] = {
    "spec_bench": ["Rain falls.\nSnow as well.\nwhat falls"],
    "mt_bench": ["Write.", "Rewrite."],
    "vicuna_bench": ["How do I sleep?"],
    "humaneval": [
        "Complete this Python function. Return the whole function.\n\n"
        '```python\ndef one():\n    """One."""\n```'
    ],
    "humanevalfix": [
        "Fix the bug in `one`. Return the whole corrected function.\n\n"
        '```python\ndef one():\n    """One."""\n    return 2\n```'
    ],
    "mbpp": [
        "Write a function to find one. Write it in Python. It has to pass these tests:\n\n"
        "```python\nassert one() == 1\nassert one() < 2\n```"
    ],
    "gsm8k": ["What is 2\u20281?"],
    "math500": ["What is $1$?"],
    "llma_rag": ["docs:\nRain falls.\nSnow falls.\nquery: what falls\nanswer:"],
    "llma_cnndm": [_LLMA],
    "editeval": [f"Make it one. Return the whole edited program.\n\n```python\n{_CODE}\n```"],
    "jfleg": ["Correct the grammar and spelling of this text. Return only the result.\n\nHe go ."],
    "asset": ["Make this sentence easier to read. Return only the result.\n\nIt was raining."],
    "mteval_refine": ["Content: It rained. \n\nInstruction: Sum it up.", "Shorter."],
    "mtbench101": ["One?", "And two?"],
    "cnndm": [f"Summarize: {_ARTICLE}"],
    "xsum": [f"Summarize in one sentence: {_ARTICLE}"],
    "wmt16_deen": ["Translate German to English: Es regnet."],
    "canitedit": [
        "Make the function return one.\n\nReturn the whole edited program.\n\n"
        f"```python\n{_CODE}\n```"
    ],
}
"""Of the first record."""

DOCUMENTS: dict[str, list[str]] = {
    "spec_bench": ["Rain falls.\nSnow as well."],
    "humanevalfix": ['def one():\n    """One."""\n    return 2'],
    "llma_rag": ["Rain falls.", "Snow falls."],
    "llma_cnndm": ["(CNN)It rained."],
    "editeval": [_CODE],
    "jfleg": ["He go ."],
    "asset": ["It was raining."],
    "mteval_refine": ["It rained."],
    "cnndm": [_ARTICLE],
    "xsum": [_ARTICLE],
    "canitedit": [_CODE],
}
"""Of the first record, where there are any."""
