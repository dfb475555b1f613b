-- The server writes a batch's deduplication token to its log before it renames the batch's part into the table. If it is
-- killed in between, it drops the repeated batch as stored, and the rows are lost. The key of these tables makes copies
-- one row in any case, so they deduplicate by key alone. The views, whose sums a repeated batch would double, keep tokens.
--
-- A batch is acknowledged after fsync, so a power failure does not lose it either.
ALTER TABLE usage_events
    MODIFY SETTING non_replicated_deduplication_window = 0, fsync_after_insert = 1, fsync_part_directory = 1;
ALTER TABLE usage_dead_letters
    MODIFY SETTING non_replicated_deduplication_window = 0, fsync_after_insert = 1, fsync_part_directory = 1;
