-- What routing chose, and why. Events of before name the model that answered: nothing else could.
ALTER TABLE usage_events
    ADD COLUMN IF NOT EXISTS routed_model LowCardinality(String) DEFAULT served_model AFTER requested_model,
    ADD COLUMN IF NOT EXISTS route_reason LowCardinality(String) DEFAULT 'explicit' AFTER model_version;
