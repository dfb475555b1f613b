"""How many preemptions a tenant's waiting requests may cause."""


class PreemptionBudget:
    """A token bucket a tenant: `burst` preemptions at once, and as many again in `window_steps` steps.

    Priority is not a weapon: a tenant that sends request after request to have others preempted comes to wait like
    anyone. Buckets are kept in whole preemptions times `window_steps`; a full one is not remembered.
    """

    def __init__(self, burst: int, window_steps: int) -> None:
        self._burst = burst
        self._window_steps = window_steps
        self._spent: dict[str, tuple[int, int]] = {}
        """What of its bucket is spent, and in which step that was so."""

    def left(self, tenant: str, step: int) -> int:
        return self._burst - -(-self._spent_now(tenant, step) // self._window_steps)

    def spend(self, tenant: str, step: int, preemptions: int) -> None:
        assert preemptions <= self.left(tenant, step), f"{tenant} has caused too many preemptions"
        self._spent[tenant] = (self._spent_now(tenant, step) + preemptions * self._window_steps, step)
        if len(self._spent) > 1024:
            self._spent = {name: spent for name, spent in self._spent.items() if self._spent_now(name, step)}

    def _spent_now(self, tenant: str, step: int) -> int:
        spent, since = self._spent.get(tenant, (0, step))
        return max(0, spent - (step - since) * self._burst)
