-- Requests that were refused, and requests that failed before they had a usage record. No row is billed.
--
-- A row counts the equal refusals of one gateway in one minute; the columns are those of gateway/refusals/refusal.py. A
-- gateway inserts a row again until the store has acknowledged it: the key makes copies one row, in merges and in
-- SELECT ... FINAL, and a copy has the same occurred_at and so is in the same partition.
--
-- Rows are deleted 90 days after their last refusal, a whole week at a time: a part is dropped when its last row expires,
-- and no part is rewritten. ALTER TABLE refusals MODIFY TTL changes the time.
CREATE TABLE IF NOT EXISTS refusals
(
    refusal_id UUID,
    source LowCardinality(String),
    occurred_at DateTime64(3, 'UTC'),
    tenant_id String,
    key_id String,
    tier LowCardinality(String),
    model String,
    endpoint LowCardinality(String),
    outcome LowCardinality(String),
    status UInt16,
    code LowCardinality(String),
    limit_name LowCardinality(String),
    requests UInt64,
    request_id String
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(occurred_at)
ORDER BY (tenant_id, toStartOfHour(occurred_at), refusal_id)
TTL toDateTime(occurred_at) + INTERVAL 90 DAY
SETTINGS ttl_only_drop_parts = 1;
