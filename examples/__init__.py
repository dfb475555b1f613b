"""Programs that use Turnpike as its users do."""
