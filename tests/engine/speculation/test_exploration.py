"""Trials cost at most a hundredth of the time, whatever each costs; drafters catch up only where that pays."""

from engine.scheduling.cost import StepWork
from engine.speculation.draft_catchup import worth_drafting_for
from engine.speculation.exploration import MAX_STEPS, ExplorationBudget
from engine.speculation.policy import Candidate, Drafting, SpeculationLoad, StepOutcome

STEP_NS = 1_000_000


def step(drafting_ns: int = 0, prefill_tokens: int = 0) -> StepOutcome:
    drafting = (Drafting("draft", 1, 1, 1, 1, drafting_ns),) if drafting_ns else ()
    work = StepWork(4 + prefill_tokens, 400, 0, 4)
    return StepOutcome(SpeculationLoad(4, 0, 400), work, drafting, (), STEP_NS)


def credit_ns(budget: ExplorationBudget) -> int:
    """The most that it affords, to ten microseconds."""
    return max((cost_ns for cost_ns in range(0, 10 * STEP_NS, 10_000) if budget.affords(cost_ns)), default=-1)


def test_at_the_start_a_trial_may_cost_a_step_and_none_before_there_was_one() -> None:
    budget = ExplorationBudget()
    assert not budget.affords(1.0)
    budget.observe(step())
    assert credit_ns(budget) == STEP_NS + STEP_NS // 100


def test_a_step_of_prompts_is_no_measure_of_what_they_may_cost() -> None:
    budget = ExplorationBudget()
    budget.observe(step(prefill_tokens=500))
    assert not budget.affords(1.0)


def test_a_hundredth_of_all_time_comes_to_it_up_to_a_few_steps() -> None:
    budget = ExplorationBudget()
    for _ in range(101):
        budget.observe(step())
    assert abs(credit_ns(budget) - 2 * STEP_NS) <= 20_000
    for _ in range(1000):
        budget.observe(step())
    assert abs(credit_ns(budget) - MAX_STEPS * STEP_NS) <= 20_000


def test_a_trial_costs_what_it_took_with_the_drafting_and_the_catching_up() -> None:
    budget = ExplorationBudget()
    budget.observe(step())
    before_ns = credit_ns(budget)
    budget.record_exploration(STEP_NS + 100_000)
    budget.observe(step(drafting_ns=600_000))
    earned_ns = (STEP_NS + 600_000) // 100
    assert abs(credit_ns(budget) - (before_ns + earned_ns - 500_000)) <= 20_000


def test_of_a_trial_in_a_step_with_prompts_the_drafting_is_its_cost() -> None:
    budget = ExplorationBudget()
    budget.observe(step())
    before_ns = credit_ns(budget)
    budget.record_exploration(100)
    budget.observe(step(drafting_ns=200_000, prefill_tokens=50))
    assert abs(credit_ns(budget) - (before_ns + 12_000 - 200_000)) <= 20_000


def candidate(lag_tokens: int, left_tokens: int = 50) -> Candidate:
    return Candidate(0, 4, lag_tokens, 30, left_tokens)


def worth(*candidates: Candidate) -> list[int]:
    """Drafts save 2 ns of each token's time; to catch up takes a nanosecond a token."""
    return worth_drafting_for(candidates, 2.0, lambda each: float(each.lag_tokens))


def test_who_needs_no_catching_up_has_drafts_even_where_they_save_nothing() -> None:
    assert worth_drafting_for([candidate(0), candidate(5)], 0.0, lambda each: float(each.lag_tokens)) == [0]


def test_some_may_cost_more_than_they_bring_where_others_pay_for_it() -> None:
    assert worth(candidate(150)) == []
    assert worth(candidate(150), candidate(40)) == [0, 1]
    assert worth(candidate(150), candidate(40), candidate(160)) == [0, 1]


def test_none_may_cost_much_more() -> None:
    assert worth(candidate(210), *[candidate(0)] * 9) == list(range(1, 10))


def test_what_is_left_of_an_answer_decides() -> None:
    assert worth(candidate(30, left_tokens=5), candidate(30, left_tokens=40)) == [1]
    assert worth(candidate(180, left_tokens=10**6)) == [0], "it is expected to continue for some 94 tokens"
    assert worth(candidate(200, left_tokens=10**6)) == []
