-- The message that a process tries alone because processes have died here: {"at": next_offset as it was, "deaths": how many
-- died of it, "running": it is being tried}. Where at isn't next_offset it is of the past.
ALTER TABLE semel.watermark ADD COLUMN trial jsonb;
