-- Whether the tokens of an event are an estimate: the server of its model reported none. Events of before do not say.
ALTER TABLE usage_events
    ADD COLUMN IF NOT EXISTS estimated Bool DEFAULT false AFTER completion_tokens;
