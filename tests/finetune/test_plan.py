import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.config import FinetuneConfig
from finetune.plan import PlannedBatches, grouped, nearest_rows, plan


def planned(rows, seed=0, processes=1, **settings):
    return plan(rows, FinetuneConfig(**settings), seed, processes=processes)


def flat(schedule):
    return [batch.tolist() for batch in schedule.batches]


@pytest.mark.parametrize(
    ("rows", "settings", "steps", "evaluations"),
    [
        (10, {"batch_size": 4}, 3, {2, 3}),
        (9, {"batch_size": 4}, 2, {1, 2}),  # a third batch would hold one row: 5 and 4 instead
        (64, {"batch_size": 8, "epochs": 2}, 16, {4, 8, 12, 16}),
        (64, {"batch_size": 8, "epochs": 0.5}, 4, {4}),
        (64, {"batch_size": 8, "epochs": 1.25}, 10, {4, 7, 10}),
        (64, {"batch_size": 8, "evaluations_per_epoch": 1, "epochs": 2}, 16, {8, 16}),
        (3, {"batch_size": 32, "evaluations_per_epoch": 5}, 1, {1}),
        (64, {"epochs": 0}, 0, set()),
        (0, {}, 0, set()),
    ],
)
def test_the_plan_is_known_before_training(rows, settings, steps, evaluations):
    schedule = planned(rows, **settings)
    assert (schedule.steps, schedule.evaluations, len(PlannedBatches(schedule))) == (steps, evaluations, steps)
    assert len(list(PlannedBatches(schedule))) == steps


@pytest.mark.parametrize(("rows", "epochs"), list(itertools.product([16, 40, 160, 1000], [0.1, 0.5, 1, 1.25, 1.3, 3])))
def test_dev_is_measured_at_least_every_half_epoch_and_after_the_last_step(rows, epochs):
    schedule = planned(rows, batch_size=8, epochs=epochs)
    steps = [0, *sorted(schedule.evaluations)]
    assert steps[-1] == schedule.steps
    assert max(after - before for before, after in itertools.pairwise(steps)) <= -(-schedule.steps_per_epoch // 2)


@given(rows=st.integers(1, 300), batch_size=st.integers(2, 64), epochs=st.integers(1, 3), processes=st.integers(1, 3))
def test_every_epoch_holds_each_row_once_in_batches_of_equal_size(rows, batch_size, epochs, processes):
    schedule = planned(rows, processes=processes, batch_size=batch_size, epochs=epochs)
    sizes = {len(schedule.rows(step)) for step in range(1, schedule.steps + 1)}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= batch_size / 2 or min(sizes) == rows
    assert max(sizes) < batch_size * 1.5 + 1
    for epoch in range(epochs):
        first = epoch * schedule.steps_per_epoch
        found = np.concatenate([schedule.rows(step + 1) for step in range(first, first + schedule.steps_per_epoch)])
        assert sorted(found.tolist()) == list(range(rows))


def test_epochs_differ_and_a_seed_repeats_all_of_them():
    schedule = planned(40, batch_size=8, epochs=2)
    assert flat(schedule)[:5] != flat(schedule)[5:]
    assert flat(planned(40, batch_size=8, epochs=2)) == flat(schedule)
    assert flat(planned(40, seed=1, batch_size=8, epochs=2)) != flat(schedule)


def test_processes_share_the_batches_of_one():
    one, three = planned(50, batch_size=10), planned(50, processes=3, batch_size=10)
    assert one.steps == three.steps == 5
    for step in range(1, 6):
        assert three.rows(step).tolist() == one.rows(step).tolist()
        assert {len(batch) for batch in three.batches[3 * (step - 1) : 3 * step]} <= {3, 4}


def test_a_group_is_a_row_and_the_free_rows_nearest_to_it():
    neighbours = np.array([[1, 2], [0, 2], [0, 1], [4, -1], [3, -1]])
    for seed in range(20):
        order = grouped(neighbours, 2, np.random.default_rng(seed)).tolist()
        assert sorted(order) == [0, 1, 2, 3, 4]
        assert abs(order.index(3) - order.index(4)) == 1
        trio = [row for row in order if row < 3]
        assert abs(order.index(trio[0]) - order.index(trio[1])) == 1


def test_the_nearest_rows_are_those_of_other_queries_nearest_first():
    turns = np.radians([0.0, 10.0, 25.0, 180.0])
    queries = np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)
    found = nearest_rows(queries, np.array([0, 0, 1, 2, 3]))  # the first query has two rows
    assert [row[row >= 0].tolist() for row in found] == [[2, 3, 4], [2, 3, 4], [0, 3, 4], [2, 0, 4], [3, 2, 0]]


def test_related_queries_share_batches():
    neighbours = np.arange(64).reshape(-1, 2)[:, ::-1].reshape(-1, 1)  # 0 and 1, 2 and 3, ...
    schedule = plan(64, FinetuneConfig(batch_size=8, related=2, epochs=2), 0, neighbours)
    for batch in schedule.batches:
        assert {row ^ 1 for row in batch.tolist()} == set(batch.tolist())
