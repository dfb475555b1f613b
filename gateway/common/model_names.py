"""The pattern of a model's name, for the settings as for tenants' policies."""

MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"
