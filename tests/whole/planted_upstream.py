"""The bugs in the client of another server that the simulation finds: see `planted.py`."""

from tests.support.planting import Plant, drop, drop_assignment, force_condition, never, replace

TABLE = {
    "gateway.upstreams.answers:AnswerReader": [
        Plant("an upstream's usage is not billed", "_read", drop_assignment("_reported"), seed=27),
        Plant("an upstream's prompt is billed as estimated", "_read", drop_assignment("_prompt_tokens"), seed=7),
        Plant("an upstream's answer without an end is whole", "finish", never("not self.is_whole"), seed=67),
    ],
    "gateway.upstreams.breaker:UpstreamBreaker": [
        Plant("an upstream's trial is not counted", "begin", drop_assignment("_trials"), seed=27),
        Plant("an upstream's breaker stays open", "on_success", drop_assignment("_open_until_s"), seed=27),
    ],
    "gateway.upstreams.connection:UpstreamConnection": [
        Plant("an upstream's silence has no limit", "chunks", replace("self._stated.read_timeout_s", "None"), seed=398),
    ],
    "gateway.upstreams.load:UpstreamLoad": [
        Plant("an upstream's slot is kept", "slot", drop("_pass_on"), seed=1),
        Plant("an upstream's queue keeps who has left", "_take", drop("_forget"), seed=8),
        Plant("an upstream's slot is not handed on", "_pass_on", drop("set_result"), seed=8),
        Plant("an upstream's reservation is kept", "_rebook", drop_assignment("_reserved_by_rank"), seed=1),
    ],
    "gateway.upstreams.model:UpstreamModel": [
        Plant("an upstream's trial does not end", "_slot", drop("end_trial"), seed=27),
    ],
    "gateway.upstreams.stream:UpstreamStream": [
        Plant("an upstream's reader that has room is not resumed", "next_batch", drop("set"), seed=86),
        Plant("an upstream's delta does not wake its reader", "_pump", drop("set"), seed=7),
        Plant("an upstream's error is not raised", "next_batch", force_condition(0, False), seed=1),
    ],
}
