"""How far the test set can be trusted, from what all systems returned: the findings of `closecall.quality`."""

from __future__ import annotations

from typing import Any

from closecall.looks import wear
from closecall.measures import Measure
from closecall.quality.material import BM25, Deciding, Material
from closecall.quality.survey import survey
from eval.answers import Answers
from eval.evaluation import Evaluation


def quality_of(evaluation: Evaluation, lexical: Answers | None, looks: int = 0) -> list[dict[str, Any]]:
    """The findings as JSON types, alarms first. Those that need texts are left out where there are none.

    `looks`: verdicts on the same frozen test queries, this one counted in.
    """
    asked, config = evaluation.asked, evaluation.config
    answers = dict(evaluation.answers) | ({} if lexical is None else {BM25: lexical})
    scored = evaluation.chosen.base.query_ids
    verdict = evaluation.verdicts[evaluation.ruling.contender]
    deciding = evaluation.chosen.deciding
    slices = {item.name: (item.column, len(item.query_ids)) for item in asked.slices}
    test = Deciding(deciding.n, deciding.n_groups, verdict.resolvable_gain or 0.0, slices, config.min_slice_queries)
    material = Material(
        [asked.queries[query_id] for query_id in scored if query_id in asked.queries],
        asked.qrels,
        asked.documents,
        {name: found.run() for name, found in answers.items()},
        Measure.parse(config.measure),
        config.gain,
        test,
    )
    worn = wear(looks, config.confidence)
    found = sorted([*([worn] if worn else []), *survey(material)], key=lambda one: not one.alarm)
    return [one.as_json() for one in found]
