"""Exports rows of reasoning-gym with what its `score_answer` says about good, wrong and malformed answers.

    pip install reasoning-gym==0.1.25
    python tests/peers/reasoning_gym.py > tests/peers/reasoning_gym.jsonl

One row a line, as `mipu task import reasoning-gym` reads them: question, answer, metadata (here only what verifiers look at), and
`probes`, pairs of an answer and its score; null where `score_answer` raised. The committed file was made with 0.1.25 on Python 3.11.
"""

import importlib.metadata
import json
import random
import sys

del sys.path[0]  # this file has the name of the package

import reasoning_gym  # noqa: E402

GENERATORS = [
    "basic_arithmetic",
    "caesar_cipher",
    "chain_sum",
    "gcd",
    "group_anagrams",
    "letter_counting",
    "palindrome_generation",
    "prime_factorization",
    "simple_equations",
    "word_sorting",
]
ROWS = 20
PROBES = 8
KEPT = ("source_dataset", "sorted_words", "solution", "letters")


def near(answer, rng):
    """A wrong answer that looks like the right one."""
    at = rng.randrange(len(answer))
    other = rng.choice([c for c in "0123456789abcxyz" if c != answer[at]])
    return answer[:at] + other + answer[at + 1 :]


def probes(entry, other, rng):
    """Answers to try: gold in several notations, near misses, other rows' answers, nonsense."""
    gold = entry["answer"]
    parts = gold.split(", ")
    rng.shuffle(parts)
    others = [
        f" {gold}\n",
        gold.upper(),
        f"+0{gold}.00",
        f"The answer is {gold}.",
        ", ".join(parts),
        gold[::-1],
        near(gold, rng),
        gold[:-1],
        gold + gold,
        other,
        "",
        "   ",
        rng.choice(["None", "nan", "[]", "[[1]]", "{}", "×", ",,,", "\u00e9\u0000", "[[", "1e999", "level"]),
    ]
    return [gold, *rng.sample(others, PROBES - 1)]


def score(dataset, answer, entry):
    try:
        return dataset.score_answer(answer, entry)
    except Exception:
        return None


def main():
    assert importlib.metadata.version("reasoning-gym") == "0.1.25", "goldens are made with 0.1.25"
    for name in GENERATORS:
        rng = random.Random(name)
        dataset = reasoning_gym.create_dataset(name, seed=7, size=ROWS)
        entries = list(dataset)
        for index, entry in enumerate(entries):
            other = entries[(index + 1) % ROWS]["answer"]
            tried = [[answer, score(dataset, answer, entry)] for answer in probes(entry, other, rng)]
            metadata = {key: value for key, value in entry["metadata"].items() if key in KEPT}
            row = {"question": entry["question"], "answer": entry["answer"], "metadata": metadata, "probes": tried}
            sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
