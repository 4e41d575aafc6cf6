"""How queries are worded: like what people type, or like the documents that they should find."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from closecall.quality.finding import Finding, finding
from closecall.quality.material import Material
from closecall.slices import IDENTIFIER, script_of
from closecall.text import words

VERBATIM = 0.1
"""Measured on eight sets: in 0 to 2 % of the queries all words, five or more, stand in a positive in this order."""
ALL_WORDS = 0.5
"""Measured: 0 to 2 % of queries that people wrote have all their words in a positive, 30 % of templated ones."""
LONG = 40
"""Measured: medians of 7 to 17 words."""
MISSPELT = 0.25
"""Measured: 0 to 6 % of the queries have a word one letter off a common one; logs of web search hold 10 to 15 %
misspelt ones (Cucerzan and Brill, EMNLP 2004)."""
UNKNOWN_IDENTIFIERS = 0.2
"""Measured: in 0 to 6 % of the queries an identifier stands in no document near them."""
FOREIGN = 0.02
COMMON = 5
ENOUGH = 300


def copied_words(material: Material) -> Finding | None:
    """How many of a query's words stand in its positive, and queries copied from it word by word."""
    if not material.document_words:
        return None
    shares, verbatim = [], []
    for query, own in zip(material.queries, material.words, strict=True):
        positives = [doc_id for doc_id in material.qrels.positives(query.query_id) if doc_id in material.document_words]
        if not positives or not own:
            continue
        best = max(len(set(own) & material.document_words[doc_id]) for doc_id in positives)
        shares.append(best / len(set(own)))
        if len(own) >= 5 and best == len(set(own)) and _stands_in(material, own, positives):
            verbatim.append(f"{query.query_id}: {query.text}")
    if not shares:
        return None
    copied, all_words = len(verbatim) / len(shares), float(np.mean([share == 1 for share in shares]))
    return finding(
        "copied_words",
        copied > VERBATIM or all_words > ALL_WORDS,
        (
            f"{np.median(shares):.0%} of a query's words stand in its positive (median); {all_words:.0%} of the "
            f"queries have all theirs from it, {copied:.0%} are copied in a row (people: 10 to 70 %, 2 %, 0 %)",
            "queries written from the documents flatter every model, lexical and dense: users word it differently",
            "take queries from logs, tickets and failed searches, or from people who do not see the text",
        ),
        verbatim,
    )


def _stands_in(material: Material, own: Sequence[str], doc_ids: Sequence[str]) -> bool:
    wanted = f" {' '.join(own)} "
    return any(wanted in f" {' '.join(words(material.documents[doc_id].full_text))} " for doc_id in doc_ids)


def query_length(material: Material) -> Finding | None:
    """Words of the queries."""
    lengths = np.asarray([len(own) for own in material.words])
    low, median, high = np.percentile(lengths, [5, 50, 95])
    return finding(
        "query_length",
        bool(median > LONG),
        (
            f"queries have {median:.0f} words (median; 5 % below {low:.0f}, 5 % above {high:.0f})",
            "these are texts, not what a user types: a model is measured on another task"
            if median > LONG
            else "a model may do well at one length and badly at another; short_query is a slice of its own",
            "use the question alone, as it is typed",
        ),
    )


def misspelt(material: Material) -> Finding | None:
    """Queries with a word that is one letter off a common one."""
    if not material.document_words:
        return None
    counts = Counter(word for own in material.document_words.values() for word in own)
    counts.update(word for own in material.words for word in set(own))
    known = {key: word for word, n in counts.items() if n >= COMMON and _plain(word) for key in _one_less(word)}
    found = []
    for query, own in zip(material.queries, material.words, strict=True):
        wrong = [
            (w, right) for w in own if _plain(w) and (right := _near(w, known)) and COMMON * counts[w] <= counts[right]
        ]
        if wrong:
            found.append(f"{query.query_id}: {', '.join(f'{w} ({right}?)' for w, right in wrong)}")
    share = len(found) / len(material.queries)
    clean = not found and len(material.queries) >= ENOUGH
    if not found and not clean:
        return None
    return finding(
        "misspelt",
        share > MISSPELT,
        (
            f"{share:.0%} of the queries have a word that is one letter off a common one",
            "so many are not typed by people: the texts may be damaged"
            if share > MISSPELT
            else "none is misspelt: the queries look edited, where logs have 10 to 15 % (Cucerzan and Brill 2004)"
            if clean
            else "users misspell; a model should be measured on that too",
            "look at the examples; take the queries as they were typed",
        ),
        found,
    )


def _plain(word: str) -> bool:
    return len(word) >= 5 and word.isascii() and word.isalpha()


def _one_less(word: str) -> set[str]:
    """The word, and the word without one of its letters (SymSpell): words one edit apart share one of these."""
    return {word, *(word[:place] + word[place + 1 :] for place in range(len(word)))}


def _near(word: str, known: dict[str, str]) -> str | None:
    for key in _one_less(word):
        right = known.get(key)
        if right and right != word and not _inflected(word, right):
            return right
    return None


def _inflected(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and long[len(short) :] in ("s", "es", "d", "ed")


def identifiers(material: Material) -> Finding | None:
    """Queries whose part numbers, paths or flags stand in no document near them."""
    if not material.document_words:
        return None
    asked, unknown = 0, []
    for query in material.queries:
        names = [token.strip(".,;:!?\"'()[]") for token in query.text.split() if IDENTIFIER.search(token)]
        if not names:
            continue
        asked += 1
        near = {doc_id for top in material.tops(query.query_id).values() for doc_id in top}
        near.update(material.qrels.positives(query.query_id))
        texts = [material.documents[doc_id].full_text.lower() for doc_id in near if doc_id in material.documents]
        if not any(name.lower() in text for name in names for text in texts):
            unknown.append(f"{query.query_id}: {' '.join(names)}")
    if not asked:
        return None
    share = len(unknown) / len(material.queries)
    return finding(
        "identifiers",
        share > UNKNOWN_IDENTIFIERS,
        (
            f"{asked / len(material.queries):.0%} of the queries hold an identifier; of {share:.0%} no document near "
            "them has it",
            "they ask for what the corpus does not hold: corpus and queries may be of different times or systems"
            if share > UNKNOWN_IDENTIFIERS
            else "models split identifiers into pieces; the slice `identifiers` shows how they do on them",
            "check that the corpus is the one that was searched",
        ),
        unknown,
    )


def scripts(material: Material) -> Finding | None:
    """Queries in a writing system, or of a language, in which no document near them is, and damaged text."""
    damaged = [f"{query.query_id}: {query.text}" for query in material.queries if _DAMAGED.search(query.text)]
    held = {script_of(material.documents[doc_id].full_text) for doc_id in material.document_words}
    asked = Counter(script_of(query.text) for query in material.queries)
    foreign = {name for name in asked if name != "none" and held and name not in held}
    strange = [f"{query.query_id}: {query.text}" for query in material.queries if script_of(query.text) in foreign]
    share = (len(damaged) + len(strange)) / len(material.queries)
    told = ", ".join(f"{name} {count / len(material.queries):.0%}" for name, count in asked.most_common())
    if not strange and not damaged and len(asked) == 1:
        return None
    return finding(
        "scripts",
        share > FOREIGN,
        (
            f"writing systems of the queries: {told}; {len(strange):,} are in one that no positive or returned "
            f"document has, {len(damaged):,} hold signs of a wrong encoding",
            "such queries cannot be answered by words, and say nothing about a model of the other script"
            if share > FOREIGN
            else "each writing system is a slice of its own",
            "mend the encoding, or judge these queries in a set with documents for them",
        ),
        [*damaged, *strange],
    )


_DAMAGED = re.compile("\ufffd|\u00c3[\u0080-\u00bf]|\u00e2\u20ac|\u00c2[\u00a0-\u00bf]")
"""UTF-8 read as Latin-1 or Windows-1252, or what could not be read at all."""
