"""Dashboard of the engine: queues, KV memory, preemptions, steps, drafts."""

from deploy.grafana.generate.panels import Dashboard, Form, Panel, PromQL, Row, Threshold
from deploy.grafana.generate.promql import (
    CLASS,
    CLASSES,
    INSTANCES,
    MODEL,
    MODELS,
    PROPOSER,
    chosen,
    most,
    named,
    of_class,
    of_model,
    rate,
    share,
    total,
)

_ENGINE_SECONDS = total(rate(of_class("turnpike_class_engine_seconds_total")), CLASS)
_COMPUTED = total(rate(of_model("turnpike_scheduled_tokens_total")), MODEL)
_SPARED = total(rate(of_model("turnpike_prefix_hit_tokens_total")), MODEL)
_EACH_DRAFT = (MODEL, PROPOSER, CLASS)


def _mean_of_drafts(metric: str) -> PromQL:
    """By model, proposer and class, over the gateways."""
    return PromQL(f"avg by ({', '.join(_EACH_DRAFT)}) ({of_class(metric)})", named(*_EACH_DRAFT))


def _by_class(metric: str, *more: str) -> PromQL:
    return PromQL(total(of_class(metric), CLASS, *more), named(CLASS, *more))


_QUEUE = Row(
    "Queue",
    (
        Panel(
            title="Sequences that run",
            form=Form.STACK,
            unit="short",
            queries=(_by_class("turnpike_class_sequences_running"),),
            meaning="Sequences that take part in steps, by class.",
            bad="at `max_running` while others wait: more load than slots.",
            width=6,
        ),
        Panel(
            title="Sequences that wait",
            form=Form.STACK,
            unit="short",
            queries=(_by_class("turnpike_class_sequences_waiting"),),
            meaning="Sequences in the queue, by class.",
            bad="a queue that does not empty. New requests are turned away where their wait would be too long.",
            runbook="TurnpikeQueueOld",
            width=6,
        ),
        Panel(
            title="Longest wait",
            form=Form.LINES,
            unit="s",
            queries=(PromQL(most(of_class("turnpike_class_queue_age_seconds"), MODEL, CLASS), named(MODEL, CLASS)),),
            meaning="How long the oldest waiting sequence has waited.",
            bad="over the class's target for the first token; a straight rise where nothing runs is a hung step.",
            runbook="TurnpikeQueueOld",
            width=6,
        ),
        Panel(
            title="The step under way",
            form=Form.LINES,
            unit="s",
            queries=(PromQL(most(chosen("turnpike_engine_step_age_seconds"), "instance"), named("instance")),),
            meaning="How long it has taken so far; 0 between steps.",
            bad="seconds: the watchdog gives it up at `step_timeout_s`, and the gateway leaves readiness.",
            runbook="TurnpikeEngineDown",
            width=6,
        ),
    ),
)

_MEMORY = Row(
    "KV memory",
    (
        Panel(
            title="Used by class, and free",
            form=Form.STACK,
            unit="short",
            queries=(
                PromQL(total(of_class("turnpike_class_kv_blocks_held"), CLASS), f"{named(CLASS)} holds"),
                PromQL(total(of_model("turnpike_kv_blocks_free")), "free"),
            ),
            meaning="Blocks of 16 tokens. With all classes chosen it adds up to the pool.",
            bad="nothing free for long: sequences are preempted, or wait.",
        ),
        Panel(
            title="Cached by class, and empty",
            form=Form.STACK,
            unit="short",
            queries=(
                PromQL(total(of_class("turnpike_class_kv_blocks_cached"), CLASS), f"{named(CLASS)} cached"),
                PromQL(
                    f"{total(of_model('turnpike_kv_blocks_free'))}"
                    f" - {total(of_model('turnpike_class_kv_blocks_cached'))}",
                    "empty",
                ),
            ),
            meaning="What the free blocks hold: prefixes that a class used last, or nothing. Cached ones are taken "
            "when they are needed.",
            bad="little cached for a class whose prompts begin alike: its prefixes are evicted before they come again.",
        ),
        Panel(
            title="Reserved and not yet held",
            form=Form.LINES,
            unit="short",
            queries=(
                PromQL(total(of_class("turnpike_class_kv_blocks_reserved"), CLASS), f"{named(CLASS)} may still take"),
                PromQL(total(of_model("turnpike_kv_blocks_free")), "free"),
                PromQL(total(of_class("turnpike_class_kv_blocks_missing"), CLASS), f"{named(CLASS)} misses"),
            ),
            meaning="What of its reserve each class could take at once, against what is free; and what of it is not "
            "there.",
            bad="any block missing: the promise is broken, which is a bug.",
            runbook="TurnpikeReserveBreached",
        ),
        Panel(
            title="Blocks in use",
            form=Form.LINES,
            unit="percentunit",
            queries=(
                PromQL(
                    f"1 - {total(of_model('turnpike_kv_blocks_free'), MODEL)}"
                    f" / {total(of_model('turnpike_kv_blocks'), MODEL)}",
                    named(MODEL),
                ),
            ),
            meaning="The share of blocks that sequences hold.",
            bad="near 100 % with preemptions: raise `kv_cache_bytes`, or lower `max_running`.",
            width=12,
            maximum=1,
            thresholds=(Threshold(0.9, "orange"),),
        ),
        Panel(
            title="State slots",
            form=Form.STACK,
            unit="short",
            queries=(
                PromQL(total(of_model("turnpike_state_slots_used")), "used"),
                PromQL(total(of_model("turnpike_state_slots_kept")), "kept"),
                PromQL(
                    f"{total(of_model('turnpike_state_slots'))} - {total(of_model('turnpike_state_slots_used'))}"
                    f" - {total(of_model('turnpike_state_slots_kept'))}",
                    "free",
                ),
            ),
            meaning="Of models with recurrent layers: states of running sequences, saved ones, and free slots.",
            bad="all used for long: sequences wait for a slot; raise `kv_cache_bytes`.",
            width=12,
        ),
        Panel(
            title="Saved states found and evicted",
            form=Form.LINES,
            unit="ops",
            queries=(
                PromQL(total(rate(of_model("turnpike_state_hits_total")), MODEL), f"{named(MODEL)} found"),
                PromQL(total(rate(of_model("turnpike_state_evictions_total")), MODEL), f"{named(MODEL)} evicted"),
            ),
            meaning="Sequences that began or resumed with a saved state, and saved states that went.",
            bad="more evicted than found while prompts begin alike: too few slots for their states.",
            width=12,
        ),
        Panel(
            title="Tokens that were in the prefix cache",
            form=Form.LINES,
            unit="percentunit",
            queries=(PromQL(share(_SPARED, f"({_SPARED} + {_COMPUTED})"), named(MODEL)),),
            meaning="Of all tokens that were needed, those that were found instead of computed.",
            bad="a fall while the traffic is the same.",
            width=12,
            maximum=1,
        ),
    ),
)

_PREEMPTIONS = Row(
    "Preemptions",
    (
        Panel(
            title="Preemptions for a class",
            form=Form.BARS,
            unit="ops",
            queries=(PromQL(total(rate(of_class("turnpike_class_preemptions_caused_total")), CLASS), named(CLASS)),),
            meaning="Sequences a second that were paused to make room for this class.",
            bad="steady ones for the lowest class: KV memory is short, as no class is above another there.",
        ),
        Panel(
            title="Preemptions of a class",
            form=Form.BARS,
            unit="ops",
            queries=(PromQL(total(rate(of_class("turnpike_class_preemptions_suffered_total")), CLASS), named(CLASS)),),
            meaning="Sequences a second of this class that were paused for others. Their streams stay open.",
            bad="the highest class among them.",
        ),
        Panel(
            title="Tokens computed again",
            form=Form.LINES,
            unit="short",
            queries=(PromQL(total(rate(of_class("turnpike_class_recomputed_tokens_total")), CLASS), named(CLASS)),),
            meaning="A second, by the class that they were preempted for.",
            bad="as many as there are preemptions times the length of prompts: prefixes do not survive a pause.",
        ),
        Panel(
            title="Time spent on computing again",
            form=Form.LINES,
            unit="percentunit",
            queries=(
                PromQL(
                    share(total(rate(of_class("turnpike_class_recompute_seconds_total")), CLASS), _ENGINE_SECONDS),
                    named(CLASS),
                ),
            ),
            meaning="The share of a class's engine time that preemptions for it have cost. In no tenant's bill.",
            bad="over 5 % for long: raise `kv_cache_bytes`, or the class's reserve.",
            width=12,
        ),
        Panel(
            title="Time spent on nobody",
            form=Form.LINES,
            unit="percentunit",
            queries=(
                PromQL(
                    share(total(rate(of_class("turnpike_class_wasted_seconds_total")), CLASS), _ENGINE_SECONDS),
                    named(CLASS),
                ),
            ),
            meaning="Rows that were launched before their request's end was known, and steps that found no room.",
            bad="over 5 %: steps that find no room on their device, see the log.",
            width=12,
        ),
    ),
)

_STEPS = Row(
    "Steps",
    (
        Panel(
            title="Engine time by class",
            form=Form.STACK,
            unit="percentunit",
            queries=(PromQL(_ENGINE_SECONDS, named(CLASS)),),
            meaning="Seconds of steps in a second. The classes add up to how busy the engine is, for each gateway "
            "100 %.",
            bad="full for long: this is all that the machine can do.",
            width=6,
        ),
        Panel(
            title="Steps",
            form=Form.LINES,
            unit="ops",
            queries=(PromQL(total(rate(of_model("turnpike_steps_total")), MODEL), named(MODEL)),),
            meaning="Forward passes a second.",
            bad="none while sequences run.",
            width=6,
        ),
        Panel(
            title="Tokens in a step",
            form=Form.LINES,
            unit="short",
            queries=(PromQL(share(_COMPUTED, total(rate(of_model("turnpike_steps_total")), MODEL)), named(MODEL)),),
            meaning="The mean of how many tokens a step computes: one for each running sequence, and chunks of "
            "prompts.",
            bad="little under full load: sequences are not batched, see what holds them back in the queue.",
            width=6,
        ),
        Panel(
            title="Sequences that failed or stood still",
            form=Form.LINES,
            unit="ops",
            queries=(
                PromQL(total(rate(of_model("turnpike_failures_total")), MODEL), f"{named(MODEL)} failed"),
                PromQL(total(rate(of_model("turnpike_pauses_total")), MODEL), f"{named(MODEL)} not read"),
            ),
            meaning="Errors of the engine, and sequences whose client did not read.",
            bad="any failure: the log has the stack.",
            runbook="TurnpikeErrorBudgetBurnsFast",
            width=6,
        ),
        Panel(
            title="Fairness",
            form=Form.LINES,
            unit="percentunit",
            queries=(
                PromQL(f"min by ({MODEL}, {CLASS}) ({of_class('turnpike_class_fairness')})", named(MODEL, CLASS)),
            ),
            meaning="Jain's index over a class's active tenants: 1 is even, 1/n is all for one of n.",
            bad="low while tenants queue. Where none waits, it says only that they want different amounts.",
            width=12,
            maximum=1,
        ),
        Panel(
            title="Active tenants",
            form=Form.LINES,
            unit="short",
            queries=(_by_class("turnpike_class_tenants_active", MODEL),),
            meaning="Tenants that were served in the last 60 s or wait now.",
            bad="nothing by itself; read fairness with it.",
            width=12,
        ),
    ),
)

_DRAFTS = Row(
    "Speculative decoding",
    (
        Panel(
            title="Depth",
            form=Form.LINES,
            unit="short",
            queries=(
                PromQL(
                    f"avg by ({', '.join(_EACH_DRAFT)}) ({of_class('turnpike_speculation_depth')})", named(*_EACH_DRAFT)
                ),
            ),
            meaning="The most drafts of a request in a step, mean of the latest steps. It is chosen by what it brings.",
            bad="nothing by itself: 0 where drafts do not pay, as under full load.",
        ),
        Panel(
            title="Acceptance",
            form=Form.LINES,
            unit="percentunit",
            queries=(
                PromQL(
                    share(
                        total(rate(of_class("turnpike_accepted_draft_tokens_total")), *_EACH_DRAFT),
                        total(rate(of_class("turnpike_draft_tokens_total")), *_EACH_DRAFT),
                    ),
                    named(*_EACH_DRAFT),
                ),
            ),
            meaning="Of drafts that were verified, the share that the model drew itself.",
            bad="a small model far below what it had: its weights are not those of its large one any more.",
            maximum=1,
        ),
        Panel(
            title="Acceptance of the latest drafts",
            form=Form.LINES,
            unit="percentunit",
            queries=(_mean_of_drafts("turnpike_speculation_acceptance"),),
            meaning="What the depth is chosen by.",
            bad="see Acceptance.",
            maximum=1,
        ),
        Panel(
            title="Tokens drafted and accepted",
            form=Form.LINES,
            unit="short",
            queries=(
                PromQL(total(rate(of_class("turnpike_draft_tokens_total")), PROPOSER), f"{named(PROPOSER)} drafted"),
                PromQL(
                    total(rate(of_class("turnpike_accepted_draft_tokens_total")), PROPOSER),
                    f"{named(PROPOSER)} accepted",
                ),
            ),
            meaning="A second, over the chosen classes and models.",
            bad="many drafted and few accepted, for more than minutes.",
        ),
        Panel(
            title="Time saved",
            form=Form.LINES,
            unit="s",
            queries=(PromQL(total(of_model("turnpike_speculation_saved_seconds"), MODEL), named(MODEL)),),
            meaning="How much less time all tokens since the start have taken than without drafts, as predicted.",
            bad='a fall: drafts do not pay. `speculation = "off"` ends them.',
        ),
        Panel(
            title="Time spent on drafting",
            form=Form.LINES,
            unit="percentunit",
            queries=(
                PromQL(
                    total(rate(of_model("turnpike_drafting_seconds_total")), MODEL, PROPOSER), named(MODEL, PROPOSER)
                ),
            ),
            meaning="Seconds of proposing in a second.",
            bad="more than what the time saved grows by.",
        ),
    ),
)

DASHBOARD = Dashboard(
    slug="engine",
    title="Engine",
    question="What does the engine do with its time and its memory, and for which class?",
    rows=(_QUEUE, _MEMORY, _PREEMPTIONS, _STEPS, _DRAFTS),
    variables=(INSTANCES, MODELS, CLASSES),
    refresh="10s",
    period="1h",
)
