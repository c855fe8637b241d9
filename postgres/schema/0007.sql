-- At most once: what the watermark was moved over before its effect, {"from", "to": offsets, "count", "sum": of its messages};
-- null: nothing. Whoever claims the row next takes it for lost.
ALTER TABLE semel.watermark ADD COLUMN ahead jsonb;
