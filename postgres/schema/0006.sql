-- Where versions are places in a source's log: the latest change that the partition has brought, {"offset": of its
-- message, "latest": the change, "millis": the highest that the source's clock has shown}. A place that falls while the
-- clock goes on is another log's.
ALTER TABLE semel.watermark ADD COLUMN source jsonb;
