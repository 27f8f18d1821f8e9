"""Verifiers of the exported generators that do not score by the base rule, written from their documented behaviour.

Imported with `--verifier`: it becomes the `python` reward of the task. `score_answer(answer, entry)` gets the agent's text and the row.
"""

import decimal
import json
import math
import re


def overlap(answer, gold):
    """The base rule: 1 for the answer itself, its share of the text where it stands among other words."""
    if answer == gold:
        return 1.0
    return len(gold) / len(answer) if answer and gold in answer else 0.0


def chain_sum(answer, entry):
    """Numbers equal by value; commas do not count."""
    answer, gold = answer.replace(",", ""), entry["answer"].replace(",", "")
    try:
        if decimal.Decimal(answer) == decimal.Decimal(gold):
            return 1.0
    except decimal.InvalidOperation:
        pass
    return overlap(answer, gold)


def word_sorting(answer, entry):
    """The share of words in their place; at least 0.2 for the right words in any order."""
    gold = entry["metadata"]["sorted_words"]
    if not answer:
        return 0.0
    words = [word.strip() for word in re.split(r",\s*", answer)]
    if words == gold:
        return 1.0
    share = sum(word == wanted for word, wanted in zip(words, gold)) / len(gold)
    return max(share, 0.2) if sorted(words) == sorted(gold) else share


def group_anagrams(answer, entry):
    """The same groups in any order; 0.01 for anything that has the form of groups."""

    def ordered(groups):
        return sorted((sorted(group) for group in groups), key=lambda group: group[0] if group else "")

    try:
        groups = json.dumps(ordered(json.loads(answer)))
    except Exception:
        return 0.0
    return 1.0 if groups == json.dumps(ordered(entry["metadata"]["solution"])) else 0.01


def prime_factorization(answer, entry):
    """1 for the factors in any order, 0.5 for another product of the same value, 0.01 for other numbers."""

    def factors(text):
        return sorted(int(part.strip()) for part in text.split("×") if part.strip())

    given, gold = factors(answer), factors(entry["answer"])
    if given == gold:
        return 1.0
    return 0.5 if math.prod(given) == math.prod(gold) else 0.01


def palindrome_generation(answer, entry):
    """1 for a palindrome of the given letters, 0.05 for another palindrome, 0.02 for any other text."""
    if answer == "":
        return 0.0
    text = answer.strip().lower()
    if text != text[::-1]:
        return 0.02
    return 1.0 if sorted(text) == sorted(entry["metadata"]["letters"]) else 0.05


VERIFIERS = {
    "chain_sum": chain_sum,
    "word_sorting": word_sorting,
    "group_anagrams": group_anagrams,
    "prime_factorization": prime_factorization,
    "palindrome_generation": palindrome_generation,
}


def score_answer(answer, entry):
    verifier = VERIFIERS.get(entry["metadata"]["source_dataset"])
    return verifier(answer, entry) if verifier else overlap(answer, entry["answer"])
