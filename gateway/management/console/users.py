"""Users of the console: administrators and tenants, by their keys."""

from dataclasses import dataclass

from gateway.management.operations.roles import Administrator
from gateway.tenancy.records import Principal


@dataclass(frozen=True, slots=True)
class AdministratorUser:
    administrator: Administrator

    @property
    def key_id(self) -> str:
        return self.administrator.key_id

    @property
    def name(self) -> str:
        return self.administrator.name

    @property
    def standing(self) -> str:
        """The role in a word."""
        return self.administrator.role.value


@dataclass(frozen=True, slots=True)
class TenantUser:
    """A tenant's key. Its pages read the records of `principal.tenant_id` alone."""

    principal: Principal

    @property
    def key_id(self) -> str:
        return self.principal.key_id

    @property
    def name(self) -> str:
        return self.principal.tenant_name

    @property
    def standing(self) -> str:
        return "tenant"


User = AdministratorUser | TenantUser
